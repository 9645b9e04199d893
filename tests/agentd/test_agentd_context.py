from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from agentd.context import CUT, KEEP_LAST, MAX_ARGUMENT_CHARS, TRIMMED, Window, cut_arguments, entry_of, shrink
from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage, decode_message
from tracewriter.events import Context, SameAs, ToolCall

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).flatmap(
    lambda piece: st.integers(0, 200).map(lambda times: piece * times)
)
arguments = st.dictionaries(st.text("abc", min_size=1, max_size=5), texts | st.integers(), max_size=4).map(
    lambda fields: Raw(msgspec.json.encode(fields))
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Valid ones: every call has its result right after it."""
    messages: list[Message] = [UserMessage(draw(texts))]
    for turn in range(draw(st.integers(0, 12))):
        calls = tuple(ToolCall(f"c{turn}_{at}", "tool", draw(arguments)) for at in range(draw(st.integers(0, 3))))
        messages.append(AssistantMessage(draw(texts), draw(texts), calls))
        messages += [ToolMessage(call.id, call.name, draw(texts)) for call in calls]
        if draw(st.booleans()):
            messages.append(UserMessage(draw(texts)))
    return messages


def valid(messages: tuple[Message, ...]) -> bool:
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not open_calls or open_calls.pop(0) != message.call_id:
                return False
        elif open_calls:
            return False
        elif isinstance(message, AssistantMessage):
            open_calls = [call.id for call in message.tool_calls]
    return not open_calls


def rebuilt(before: list[bytes], context: Context, given: dict[tuple[str, int], bytes], op: str) -> list[bytes]:
    """As the record's reader does it: differences, and references to what was given before."""

    def whole(at: int, raw: Raw) -> bytes:
        data = bytes(raw)
        if data.startswith(b'{"same_as"'):
            place = msgspec.json.decode(data, type=SameAs)
            assert place.at is not UNSET
            return given[place.same_as, place.at]
        given[op, at] = data
        return data

    after = before[: context.keep]
    for at, raw in () if context.replaced is UNSET else context.replaced:
        after[at] = whole(at, raw)
    after += [whole(at, raw) for at, raw in enumerate(context.messages, context.keep)]
    assert context.count == len(after)
    return after


@given(conversations(), st.integers(3_000, 12_000), st.data())
def test_the_request_is_within_its_budget_whatever_the_conversation(
    messages: list[Message], budget: int, data: st.DataObject
) -> None:
    window = Window(budget_chars=budget)
    seen: list[bytes] = []
    given_before: dict[tuple[str, int], bytes] = {}
    for number, message in enumerate(messages):
        window.append(message)
        if data.draw(st.booleans()):
            continue
        before = window.chars
        trimmed = window.fit()
        sent = [entry_of(m) for m in window.messages]
        assert sum(entry.chars for entry in sent) == window.chars <= budget
        assert (trimmed is None) == (before <= budget)
        assert not trimmed or (trimmed.before_chars, trimmed.after_chars) == (before, window.chars)
        # The record's differences, put together, are what was sent.
        seen = rebuilt(seen, window.delta(str(number)), given_before, str(number))
        assert seen == [entry.raw for entry in sent]
        assert all(decode_message(raw) == entry.message for raw, entry in zip(seen, sent, strict=True))


@given(conversations(), st.integers(3_000, 12_000))
def test_first_and_last_messages_stay_in_place_and_calls_keep_their_results(
    messages: list[Message], budget: int
) -> None:
    window = Window(messages, budget_chars=budget)
    window.fit()
    after = window.messages
    assert valid(after)
    assert type(after[0]) is type(messages[0])
    for old, new in zip(messages[-KEEP_LAST:], after[-KEEP_LAST:], strict=True):
        assert type(old) is type(new)
        if isinstance(old, ToolMessage) and isinstance(new, ToolMessage):
            assert (old.call_id, old.name) == (new.call_id, new.name)
        elif isinstance(old, AssistantMessage) and isinstance(new, AssistantMessage):
            assert [(c.id, c.name) for c in old.tool_calls] == [(c.id, c.name) for c in new.tool_calls]
        else:
            assert new.text == old.text or new.text.endswith(CUT)


def conversation(turns: int, result: str, argument: str = "") -> list[Message]:
    messages: list[Message] = [UserMessage("fix the bug")]
    for turn in range(turns):
        given_arguments = Raw(msgspec.json.encode({"path": "a.py", "content": argument}))
        messages.append(AssistantMessage(f"turn {turn}", tool_calls=(ToolCall(f"c{turn}", "t", given_arguments),)))
        messages.append(ToolMessage(f"c{turn}", "t", result))
    return messages


def test_the_oldest_results_go_first_and_only_as_many_as_needed() -> None:
    window = Window(conversation(20, "x" * 1000), budget_chars=15_000)
    trimmed = window.fit()
    assert trimmed is not None
    results = [m.text == TRIMMED for m in window.messages if isinstance(m, ToolMessage)]
    assert results == [True] * trimmed.results_trimmed + [False] * (20 - trimmed.results_trimmed)
    assert 15_000 - 1_000 < window.chars <= 15_000


def test_long_arguments_are_cut_and_stay_an_object_that_names_its_fields() -> None:
    window = Window(conversation(6, "x", "y" * 5_000), budget_chars=25_000)
    trimmed = window.fit()
    assert trimmed is not None
    assert trimmed.arguments_cut == 2
    first = window.messages[1]
    assert isinstance(first, AssistantMessage)
    fields = msgspec.json.decode(first.tool_calls[0].input)
    assert fields["path"] == "a.py"
    assert fields["content"].startswith("yyyy")
    assert fields["content"].endswith(CUT)


def test_what_fits_is_sent_untouched() -> None:
    messages = conversation(5, "x" * 100)
    window = Window(messages)
    assert window.fit() is None
    assert list(window.messages) == messages


def test_a_second_request_records_only_what_is_new() -> None:
    window = Window(conversation(3, "x"))
    first = window.delta("op1")
    assert (first.keep, first.since, first.count) == (0, UNSET, 7)
    window.append(UserMessage("more"))
    delta = window.delta("op2")
    assert (delta.keep, delta.since, len(delta.messages), delta.replaced) == (7, "op1", 1, UNSET)


def test_trimming_is_recorded_by_position() -> None:
    window = Window(conversation(10, "x" * 900), budget_chars=11_000)
    window.delta("op1")
    window.append(UserMessage("z" * 2_000))
    assert window.fit() is not None
    delta = window.delta("op2")
    assert delta.replaced is not UNSET
    assert [at for at, _ in delta.replaced] == [2, 4]


def test_a_first_message_larger_than_everything_is_cut_by_code_point_with_a_mark() -> None:
    window = Window([UserMessage("é\n" * 50_000)], budget_chars=1_000)
    window.fit()
    (first,) = window.messages
    assert first.text.endswith(CUT)
    assert 900 < window.chars <= 1_000


def test_turns_without_end_are_left_out_when_even_their_remains_are_too_many() -> None:
    window = Window(conversation(2_000, "ok"), budget_chars=20_000)
    assert window.fit() is not None
    assert window.chars <= 20_000
    assert valid(window.messages)
    assert window.messages[0] == UserMessage("fix the bug")


@given(st.binary(max_size=3_000) | arguments.map(bytes))
def test_cut_arguments_are_short_valid_json_whatever_came(data: bytes) -> None:
    cut = cut_arguments(data, 200)
    if cut != data:
        assert isinstance(msgspec.json.decode(cut), dict)
    assert len(cut.decode("utf-8", "replace")) <= max(200, len('{"trimmed":"budget"}'))


@given(conversations(), st.integers(0, 3_000))
def test_shrinking_never_lengthens(messages: list[Message], chars: int) -> None:
    for message in messages:
        before, after = entry_of(message).chars, entry_of(shrink(message, chars)).chars
        smallest = entry_of(shrink(message, 0)).chars
        assert after <= before
        assert after <= max(chars, smallest)


def test_the_budget_of_arguments_is_a_thousand_characters() -> None:
    long = msgspec.json.encode({"a": "é" * 3_000})
    assert len(cut_arguments(long).decode()) <= MAX_ARGUMENT_CHARS
