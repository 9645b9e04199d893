from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage, encode_message
from agentd.recorded import Recorded
from tracewriter.events import (
    Failure,
    ModelRequestFailed,
    ModelRequestFinished,
    RunExecuteStarted,
    SameAs,
    ToolCall,
    ToolCallFinished,
    ToolCallStarted,
)

LONG = "words enough for a reference to be shorter than they are"
RUN = "r" * 32


def entry(recorded: Recorded, message: Message, op: str = "asked", at: int = 0) -> SameAs | Message:
    """What a context says of a message."""
    raw = recorded.entry(message, encode_message(message), op, at)
    return msgspec.json.decode(raw, type=SameAs) if bytes(raw).startswith(b'{"same_as"') else msgspec.json.decode(
        raw, type=Message
    )  # fmt: skip


def finished(text: str = LONG, refusal: str = "") -> ModelRequestFinished:
    calls = (ToolCall("c1", "t", Raw(b'{"a":1}')),)
    return ModelRequestFinished(text, "hm", calls, "stop", "stop", None, None, None, 1.0, refusal or UNSET)


def test_each_kind_that_is_a_message_can_be_referred_to_by_its_own_id() -> None:
    recorded = Recorded()
    calls = (ToolCall("c1", "t", Raw(b'{"a":1}')),)
    failed = ModelRequestFailed(Failure("k", "m"), LONG + "!", "lost", (), None, None, 1.0)
    for event, op, message, same_as in (
        (RunExecuteStarted("p", LONG, "build", "m", "fake"), "", UserMessage(LONG), RUN),
        (finished(), "op1", AssistantMessage(LONG, "hm", calls), "op1"),
        (finished("", LONG + "?"), "op2", AssistantMessage(LONG + "?", "hm", calls), "op2"),
        (failed, "op3", AssistantMessage(LONG + "!"), "op3"),
        (ToolCallFinished("c1", "t", LONG, True, 1.0), "op4", ToolMessage("c1", "t", LONG, is_error=True), "op4"),
    ):
        assert recorded.note(event, RUN, op) == message
        assert entry(recorded, message) == SameAs(same_as)
    assert recorded.note(ToolCallStarted("c1", "t", Raw(b"{}")), RUN, "op5") is None


def test_what_only_goes_back_to_the_provider_stands_beside_the_reference_and_once() -> None:
    recorded = Recorded()
    said = recorded.note(finished(), RUN, "op1")
    assert isinstance(said, AssistantMessage)
    sent = msgspec.structs.replace(said, opaque=(Raw(b'{"signature":"s"}'),))
    assert entry(recorded, sent, "asked", 3) == SameAs("op1", opaque=sent.opaque)
    assert entry(recorded, sent, "later", 1) == SameAs("asked", 3)
    assert entry(recorded, said, "later", 2) == SameAs("op1")


def test_a_message_that_is_not_byte_for_byte_the_recorded_one_is_given_whole_once() -> None:
    recorded = Recorded()
    recorded.note(ToolCallFinished("c1", "t", LONG, False, 1.0), RUN, "op1")
    for changed in (
        ToolMessage("c1", "t", LONG + " [trimmed: budget]"),
        ToolMessage("c2", "t", LONG),
        ToolMessage("c1", "t", LONG, is_error=True),
        UserMessage(LONG),
    ):
        assert entry(recorded, changed, "asked", 5) == changed
        assert entry(recorded, changed, "later", 6) == SameAs("asked", 5)


def test_a_reference_is_never_longer_than_what_it_stands_for() -> None:
    recorded = Recorded()
    message = UserMessage("yes")
    recorded.note(RunExecuteStarted("p", "yes", "build", "m", "fake"), RUN, "")
    assert entry(recorded, message) == message


def test_the_oldest_are_forgotten_and_what_is_used_stays() -> None:
    recorded = Recorded(max_known=3)
    first, *others = [UserMessage(f"{LONG} {number}") for number in range(5)]
    for at, message in enumerate([first, *others]):
        assert entry(recorded, message, "asked", at) == message
        assert entry(recorded, first, "later", 9) == SameAs("asked", 0)
    assert entry(recorded, others[0], "later", 1) == others[0]
    assert repr(recorded) == "<Recorded messages=3>"


def test_system_prompt_and_tools_are_given_when_they_change_each_by_itself() -> None:
    recorded = Recorded()
    tools, more = (Raw(b'{"name":"a"}'),), (Raw(b'{"name":"a"}'), Raw(b'{"name":"b"}'))
    given = [
        recorded.given(system, some, op)
        for op, system, some in [
            ("1", "good", tools), ("2", "good", tools), ("3", "good", more), ("4", "bad", more), ("5", "good", more)
        ]
    ]  # fmt: skip
    assert [(one.system, one.system_as) for one in given] == [
        ("good", UNSET), (UNSET, "1"), (UNSET, "1"), ("bad", UNSET), ("good", UNSET)
    ]  # fmt: skip
    assert [(one.tools, one.tools_as) for one in given] == [
        (tools, UNSET), (UNSET, "1"), (more, UNSET), (UNSET, "3"), (UNSET, "3")
    ]  # fmt: skip


def test_no_system_prompt_and_no_tools_are_given_as_such() -> None:
    given = Recorded().given("", (), "1")
    assert (given.system, given.tools) == ("", ())
