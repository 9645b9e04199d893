"""What of a conversation the model is sent: all of it while it fits the request budget, otherwise a shortened copy.

The conversation itself is never touched. A `Window` holds, per message, its one encoding and its size, so that a request
costs what changed and not what there is. What was shortened stays so (a prefix that stays the same is cached by the
providers), and `delta` tells the record what changed since the last request.

Sizes are characters of the encoded messages. In this order, until the request fits:
 1. oldest first, but for the first message and the last six: tool results become `[trimmed: budget]`, arguments of tool
    calls are cut to about 1,000 characters (and stay a JSON object);
 2. oldest first, the same range: everything else that is text;
 3. the oldest turns are left out, when even their shortened remains take half of the budget;
 4. the first message and the last six are cut inside their texts, the longest most.
Ids and tool names are never cut: the bound holds as long as those of the first and the last messages fit in half of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage, encode_message
from agentd.recorded import Recorded
from tracewriter.events import Context, ContextTrimApplied, ToolCall

REQUEST_BUDGET_CHARS: Final = 200_000
KEEP_LAST: Final = 6
MAX_ARGUMENT_CHARS: Final = 1_000
TRIMMED: Final = "[trimmed: budget]"
CUT: Final = "…[trimmed: budget]"
# Texts of the middle keep their beginning: what was decided is worth more than how it was said.
_MIDDLE_TEXT_CHARS: Final = 500
_EMPTY: Final = len('""')
_encoder: Final = msgspec.json.Encoder()


class Entry(Struct, frozen=True):
    """A message as it is sent, encoded once."""

    message: Message
    raw: bytes
    chars: int


def entry_of(message: Message) -> Entry:
    """The message with its encoding and its size."""
    raw = encode_message(message)
    return Entry(message, raw, _chars(raw))


class Window:
    """The messages of one run's requests, kept under the budget. `recorded`: what the session's record holds already."""

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        budget_chars: int = REQUEST_BUDGET_CHARS,
        recorded: Recorded | None = None,
    ) -> None:
        self._budget = budget_chars
        self._recorded = Recorded() if recorded is None else recorded
        self._since: str | UnsetType = UNSET
        self._entries = [entry_of(message) for message in messages]
        self._total = sum(entry.chars for entry in self._entries)
        self._sent = 0
        self._changed: set[int] = set()
        self._results_done = 1  # entries before these are already shortened as far as pass 1 and 2 go
        self._texts_done = 1

    def __repr__(self) -> str:
        return f"<Window messages={len(self._entries)} chars={self._total} budget={self._budget}>"

    @property
    def messages(self) -> tuple[Message, ...]:
        """What to send."""
        return tuple(entry.message for entry in self._entries)

    @property
    def chars(self) -> int:
        """The size of all messages."""
        return self._total

    def append(self, message: Message) -> None:
        """The conversation goes on."""
        entry = entry_of(message)
        self._entries.append(entry)
        self._total += entry.chars

    def fit(self, overhead_chars: int = 0) -> ContextTrimApplied | None:
        """Shorten until messages and overhead (system prompt, tools) fit the budget; None when they do already."""
        room = self._budget - overhead_chars
        before = self._total
        if before <= room:
            return None
        results, arguments = self._trim_results(room)
        self._trim_texts(room)
        self._leave_out(room)
        self._cut_kept(room)
        return ContextTrimApplied(before + overhead_chars, self._total + overhead_chars, results, arguments)

    def delta(self, op: str, overhead_chars: int = 0) -> Context:
        """What the request `op` carries, as the difference to the previous call's; the messages are then taken as sent."""
        keep = self._sent
        replaced = tuple((at, self._given(at, op)) for at in sorted(self._changed) if at < keep)
        added = tuple(self._given(at, op) for at in range(keep, len(self._entries)))
        since, self._since = self._since, op
        self._sent = len(self._entries)
        self._changed.clear()
        chars = self._total + overhead_chars
        return Context(keep, added, chars, len(self._entries), since, replaced or UNSET)

    def _given(self, at: int, op: str) -> Raw:
        entry = self._entries[at]
        return self._recorded.entry(entry.message, entry.raw, op, at)

    def _replace(self, at: int, message: Message) -> None:
        entry = entry_of(message)
        self._total += entry.chars - self._entries[at].chars
        self._entries[at] = entry
        self._changed.add(at)

    def _trim_results(self, room: int) -> tuple[int, int]:
        results = arguments = 0
        while self._results_done < len(self._entries) - KEEP_LAST and self._total > room:
            at = self._results_done
            self._results_done += 1
            match self._entries[at].message:
                case ToolMessage() as message if len(message.text) > len(TRIMMED):
                    self._replace(at, msgspec.structs.replace(message, text=TRIMMED))
                    results += 1
                case AssistantMessage() as message if any(
                    len(call.input) > MAX_ARGUMENT_CHARS for call in message.tool_calls
                ):
                    self._replace(at, _with_short_arguments(message))
                    arguments += 1
                case UserMessage() | AssistantMessage() | ToolMessage():
                    pass
        return results, arguments

    def _trim_texts(self, room: int) -> None:
        while self._texts_done < len(self._entries) - KEEP_LAST and self._total > room:
            at = self._texts_done
            self._texts_done += 1
            entry = self._entries[at]
            short = shrink(entry.message, _MIDDLE_TEXT_CHARS)
            if short is not entry.message:
                self._replace(at, short)

    def _leave_out(self, room: int) -> None:
        tail = self._tail_start()
        middle = sum(entry.chars for entry in self._entries[1:tail])
        if self._total <= room or middle <= room // 2:
            return
        # Down to a quarter at once: each time costs the record the whole window and the provider its cache.
        end = 1
        while end < tail and (middle > room // 4 or isinstance(self._entries[end].message, ToolMessage)):
            middle -= self._entries[end].chars
            self._total -= self._entries[end].chars
            end += 1
        del self._entries[1:end]
        self._sent = min(self._sent, 1)
        self._changed = {at for at in self._changed if at < 1}
        self._results_done = self._texts_done = max(1, self._texts_done - (end - 1))

    def _tail_start(self) -> int:
        """Where the kept end begins: six messages, and the call that the first of them answers."""
        start = max(len(self._entries) - KEEP_LAST, 1)
        while 1 < start < len(self._entries) and isinstance(self._entries[start].message, ToolMessage):
            start -= 1
        return start

    def _cut_kept(self, room: int) -> None:
        if self._total <= room or not self._entries:
            return
        kept = [0, *range(self._tail_start(), len(self._entries))]
        room_kept = room - (self._total - sum(self._entries[at].chars for at in kept))
        smallest = {at: entry_of(shrink(self._entries[at].message, 0)).chars for at in kept}
        level = _level([(self._entries[at].chars, smallest[at]) for at in kept], room_kept)
        for at in kept:
            if self._entries[at].chars > level:
                self._replace(at, shrink(self._entries[at].message, level))


def _level(sizes: list[tuple[int, int]], room: int) -> int:
    """The greatest level such that all sizes, cut to it but never below their smallest, fit the room."""
    low, high = 0, max(size for size, _ in sizes)
    while low < high:
        level = (low + high + 1) // 2
        if sum(min(size, max(level, smallest)) for size, smallest in sizes) <= room:
            low = level
        else:
            high = level - 1
    return low


def shrink(message: Message, chars: int) -> Message:
    """The message with as little cut as needed to be `chars` long when encoded, or as short as ids and names allow."""
    if _chars(encode_message(message)) <= chars:
        return message
    match message:
        case UserMessage() | ToolMessage():
            return msgspec.structs.replace(message, text=_text_for(message, chars))
        case AssistantMessage():
            return _shrink_assistant(message, chars)


def _shrink_assistant(message: AssistantMessage, chars: int) -> AssistantMessage:
    # Reasoning goes first and opaque parts with it: half of a signature is worth nothing to a provider.
    steps = (
        _with_short_arguments,
        lambda m: msgspec.structs.replace(m, reasoning="", opaque=()),
        lambda m: msgspec.structs.replace(m, text=_text_for(m, chars)),
        lambda m: msgspec.structs.replace(m, tool_calls=tuple(_call_with(call, b"{}") for call in m.tool_calls)),
    )
    for step in steps:
        message = step(message)
        if _chars(encode_message(message)) <= chars:
            break
    return message


def _text_for(message: Message, chars: int) -> str:
    """The message's text, cut so that the whole message is `chars` long, or to nothing but the mark."""
    around = _chars(encode_message(msgspec.structs.replace(message, text=""))) - _EMPTY
    return _cut(message.text, chars - around)


def _with_short_arguments(message: AssistantMessage) -> AssistantMessage:
    calls = tuple(_call_with(call, cut_arguments(bytes(call.input))) for call in message.tool_calls)
    return msgspec.structs.replace(message, tool_calls=calls)


def _call_with(call: ToolCall, arguments: bytes) -> ToolCall:
    return ToolCall(call.id, call.name, Raw(arguments))


def cut_arguments(arguments: bytes, limit_chars: int = MAX_ARGUMENT_CHARS) -> bytes:
    """The arguments of a tool call at about `limit_chars` at most: still a JSON object, long strings cut, names kept."""
    if _chars(arguments) <= limit_chars:
        return arguments
    try:
        fields = msgspec.json.decode(arguments, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _encoder.encode({"trimmed": "budget"})
    share = max(limit_chars // max(len(fields), 1) - 40, 0)
    cut = _encoder.encode({name: _cut_value(value, share) for name, value in fields.items()})
    return cut if _chars(cut) <= limit_chars else _encoder.encode({"trimmed": "budget"})


def _cut_value(value: Raw, share: int) -> Raw:
    if len(value) <= share:
        return value
    try:
        text = msgspec.json.decode(value, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Raw(_encoder.encode(TRIMMED))
    return Raw(_encoder.encode(_cut(text, share)))


def _cut(text: str, encoded_chars: int) -> str:
    """A beginning of the text, with the mark, whose encoding has at most `encoded_chars`, or the mark alone; never longer."""
    whole = _encoded_chars(text)
    if whole <= encoded_chars:
        return text
    low, high = 0, min(len(text), max(encoded_chars, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if _encoded_chars(text[:middle] + CUT) <= encoded_chars:
            low = middle
        else:
            high = middle - 1
    cut = text[:low] + CUT
    return cut if _encoded_chars(cut) < whole else text


def _encoded_chars(text: str) -> int:
    return _chars(_encoder.encode(text))


def _chars(encoded: bytes) -> int:
    return len(encoded) if encoded.isascii() else len(encoded.decode("utf-8", "replace"))
