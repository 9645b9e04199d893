"""The books of one run: what it said, did, used and changed so far, so that its end can be told at any moment.

`Run.close` gives the missing ends, whatever ended the run: of a request or calls still open, then run.execute.finished.
It gives them once. The loop closes a run that ends by itself; whoever cancels a run closes it after the cancellation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from agentd.ids import Ids
from agentd.messages import AssistantMessage, Message, ToolMessage
from agentd.providers.fallback import Chain, Target
from agentd.providers.stream import (
    Failed,
    Finished,
    Opaque,
    Provider,
    Reasoning,
    Refusal,
    Retry,
    StreamEvent,
    Text,
    UsageReported,
)
from agentd.recorded import Recorded
from agentd.tools.base import Tool, ToolContext, ToolOutput
from tracewriter.clock import Clock
from tracewriter.events import (
    Event,
    Failure,
    FileChangeApplied,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelRetryObserved,
    ModelStreamDelta,
    RunExecuteFinished,
    RunExecuteStarted,
    ToolCall,
    ToolCallFinished,
    Usage,
)
from tracewriter.jsonl import Repairs, safe_str

# A stream that never ends must not fill the memory; no model writes this much, and its event still fits a line of 8 MiB.
MAX_REPLY_CHARS: Final = 1_000_000
MAX_CALLS_PER_TURN: Final = 64
# Ids and names are never trimmed out of a request, so they are bounded where they come in.
MAX_CALL_ID_CHARS: Final = 256
MAX_TOOL_NAME_CHARS: Final = 64
MAX_ERRORS: Final = 50
_ERROR_CHARS: Final = 300

# Provider, model and usage to US dollars; None when the price is not known.
Price: TypeAlias = Callable[[str, str, Usage], Awaitable[float | None]]


class Emitted(Struct, frozen=True):
    """An event with the operation it belongs to and that one's parent ("" for none)."""

    event: Event
    op: str = ""
    parent: str = ""


class Setup(Struct, frozen=True):
    """What a run is made of. `history` is the conversation before it, `model` the provider's own id; `recorded` is what the
    session's record holds of it, and is told of what this run adds. `fallbacks` are asked in turn when `provider` gives nothing.
    """

    run: str
    prompt: str
    text: str
    mode: str
    provider: Provider
    model: str
    system: str
    tools: tuple[Tool, ...]
    context: ToolContext
    history: tuple[Message, ...] = ()
    recorded: Recorded = msgspec.field(default_factory=Recorded)
    fallbacks: tuple[Target, ...] = ()


class Reply:
    """One model request in progress: takes the provider's events, gives ours, and says at the end what came."""

    def __init__(self, op: str, started_s: float) -> None:
        self.op = op
        self.started_s = started_s
        self.first_s: float | None = None
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls: list[ToolCall] = []
        self.opaque: list[Raw] = []
        self.usage: Usage | None = None
        self.end: Finished | Failed | None = None
        self.cost_usd: float | None = None
        self._offsets = {"text": 0, "reasoning": 0, "refusal": 0}
        self._chars = 0

    def __repr__(self) -> str:
        return f"<Reply op={self.op} chars={self._chars} calls={len(self.calls)} end={self.end}>"

    def take(self, event: StreamEvent, now_s: float) -> ModelStreamDelta | ModelRetryObserved | None:
        """Note one event of the stream; what a client is shown of it at once comes back."""
        if not isinstance(event, (Retry, UsageReported, Finished, Failed)) and self.first_s is None:
            self.first_s = now_s
        match event:
            case Text(text):
                return self._piece("text", self.text, text)
            case Reasoning(text):
                return self._piece("reasoning", self.reasoning, text)
            case Refusal(text):
                return self._piece("refusal", self.refusal, text)
            case ToolCall():
                self.calls.append(event)
                self._chars += len(event.input)
            case Opaque(data):
                self.opaque.append(data)
                self._chars += len(data)
            case Retry(attempt, wait_s, failure):
                return ModelRetryObserved(attempt, wait_s * 1000, failure)
            case UsageReported(usage):
                self.usage = usage
            case Finished() | Failed():
                self.end = event
        return None

    @property
    def begun(self) -> bool:
        """Whether anything of an answer came."""
        return self.first_s is not None

    @property
    def too_long(self) -> bool:
        """Whether the stream went beyond any sensible answer and should be closed."""
        return self._chars > MAX_REPLY_CHARS

    def _piece(self, kind: str, pieces: list[str], text: str) -> ModelStreamDelta:
        text = _valid(text)
        delta = ModelStreamDelta(kind, self._offsets[kind], text)
        pieces.append(text)
        self._offsets[kind] += len(text)
        self._chars += len(text)
        return delta


class _OpenCall(Struct, frozen=True):
    call: ToolCall
    parent: str
    started_s: float


class Run:
    """One run's state, for the loop and for whoever must end it."""

    def __init__(self, setup: Setup, *, clock: Clock, ids: Ids, price: Price) -> None:
        self.setup = setup
        self.ids = ids
        self.messages: list[Message] = []
        self._clock = clock
        self._price = price
        self._started_s = clock.monotonic()
        self._reply: Reply | None = None
        self._open_calls: dict[str, _OpenCall] = {}
        self._usage: Usage | None = None
        self._cost: float | None = None
        self._cost_unknown = False
        self._tools: list[str] = []
        self._files: dict[str, tuple[str | None, str | None]] = {}
        self._errors: list[str] = []
        self._chain = Chain(Target(setup.provider, setup.model), setup.fallbacks)
        self._call_ids: set[str] = set()
        self._finished: RunExecuteFinished | None = None

    def __repr__(self) -> str:
        state = self._finished.outcome if self._finished else "running"
        return f"<Run {self.setup.run} {state} messages={len(self.messages)} tools={len(self._tools)}>"

    @property
    def finished(self) -> RunExecuteFinished | None:
        """The run's last event, once there is one."""
        return self._finished

    @property
    def target(self) -> Target:
        """The model that is asked now."""
        return self._chain.current

    def now_s(self) -> float:
        """The monotonic clock."""
        return self._clock.monotonic()

    def start(self) -> Emitted:
        """The run's first event; the prompt becomes part of the conversation."""
        setup = self.setup
        return self._say(RunExecuteStarted(setup.prompt, setup.text, setup.mode, setup.model, setup.provider.name))

    def _say(self, event: Event, op: str = "", parent: str = "", *, opaque: tuple[Raw, ...] = ()) -> Emitted:
        """An event that is a message of the conversation, too."""
        message = self.setup.recorded.note(event, self.setup.run, op)
        if isinstance(message, AssistantMessage) and opaque:
            message = msgspec.structs.replace(message, opaque=opaque)
        if message is not None:
            self.messages.append(message)
        return Emitted(event, op, parent)

    # --- model requests

    def open_request(self, op: str) -> Reply:
        """A request is about to be sent."""
        self._reply = Reply(op, self.now_s())
        return self._reply

    async def price(self, reply: Reply) -> None:
        """Find out what the request cost, if it said what it used."""
        if reply.usage is not None:
            reply.cost_usd = await self._price(self.target.provider.name, self.target.model, reply.usage)

    def close_request(self, reply: Reply) -> Emitted:
        """The request ended: its event, and its message in the conversation."""
        self._reply = None
        end = reply.end or Failed(_NO_END)
        self._charge(reply, end)
        if isinstance(end, Failed):
            return self._request_failed(reply, end)
        reply.calls = self._clean(reply.calls)
        if end.cut_tool_calls and reply.calls:  # without any the run ends, and says why
            self.note_error(unreadable_calls(end.cut_tool_calls))
        ttft = None if reply.first_s is None else (reply.first_s - reply.started_s) * 1000
        finished = ModelRequestFinished(
            "".join(reply.text),
            "".join(reply.reasoning),
            tuple(reply.calls),
            end.stop_reason,
            end.finish,
            reply.usage,
            reply.cost_usd,
            ttft,
            self._since(reply.started_s),
            "".join(reply.refusal) or UNSET,
        )
        return self._say(finished, reply.op, opaque=tuple(reply.opaque))

    def fall_back(self, reply: Reply) -> ModelRetryObserved | None:
        """The model that is asked from now on, when this request failed and nothing of an answer came; None to leave it."""
        if not isinstance(reply.end, Failed) or reply.begun:
            return None
        target = self._chain.advance(reply.end)
        if target is None:
            return None
        return ModelRetryObserved(1, 0.0, reply.end.failure, target.provider.name, target.model)

    def _request_failed(self, reply: Reply, end: Failed) -> Emitted:
        text, reasoning = "".join(reply.text) + "".join(reply.refusal), "".join(reply.reasoning)
        cut = (*end.cut_tool_calls, *(call.name for call in reply.calls))
        self.note_error(end.failure.message)
        failed = ModelRequestFailed(
            end.failure, text, reasoning, cut, reply.usage, reply.cost_usd, self._since(reply.started_s)
        )
        return self._say(failed, reply.op)

    def _charge(self, reply: Reply, end: Finished | Failed) -> None:
        if reply.usage is not None:
            self._usage = reply.usage if self._usage is None else self._usage + reply.usage
        if reply.cost_usd is not None:
            self._cost = (self._cost or 0.0) + reply.cost_usd
        elif reply.usage is not None or isinstance(end, Finished):
            # "So far": what a request that broke off may have cost is not known and not counted; an answer's cost is unknown.
            self._cost_unknown = True

    def _clean(self, calls: list[ToolCall]) -> list[ToolCall]:
        out = []
        for call in calls[:MAX_CALLS_PER_TURN]:
            known = call.id in self._call_ids
            call_id = (
                call.id if call.id and not known and len(call.id) <= MAX_CALL_ID_CHARS else f"call_{self.ids.op()}"
            )
            self._call_ids.add(call_id)
            out.append(ToolCall(call_id, call.name[:MAX_TOOL_NAME_CHARS], call.input))
        if len(calls) > len(out):
            self.note_error(f"the model made {len(calls)} tool calls in one turn; the first {len(out)} were taken")
        return out

    # --- tool calls

    def open_call(self, op: str, call: ToolCall, parent: str) -> None:
        """A call is about to run."""
        self._open_calls[op] = _OpenCall(call, parent, self.now_s())
        self._tools.append(call.name)

    def close_call(self, op: str, output: ToolOutput, duration_ms: float) -> list[Emitted]:
        """A call ended: its events, and its result in the conversation."""
        opened = self._open_calls.pop(op)
        call, parent = opened.call, opened.parent
        text = _valid(output.text)
        for change in output.changes:
            self._note_change(change)
        if output.is_error:
            self.note_error(f"{call.name}: {text}")
        chars = UNSET if output.chars is None else output.chars
        finished = ToolCallFinished(call.id, call.name, text, output.is_error, duration_ms, chars)
        facts = (*output.observed, *output.changes)
        return [*(Emitted(fact, op, parent) for fact in facts), self._say(finished, op, parent)]

    def _note_change(self, change: FileChangeApplied) -> None:
        before = self._files.get(change.path, (change.before, None))[0]
        self._files[change.path] = (before, change.after)

    def note_error(self, text: str) -> None:
        """One line for the run's end; the number and the length of lines is bounded."""
        lines = text.split("\n", 1)
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(lines[0][:_ERROR_CHARS])

    # --- the end

    def close(self, outcome: str, failure: Failure | None = None) -> list[Emitted]:
        """The ends that are missing, run.execute.finished last; nothing when the run was closed before."""
        if self._finished is not None:
            return []
        why = failure or Failure(
            outcome, f"the run was {outcome}" if outcome == "cancelled" else f"the run ended: {outcome}"
        )
        out = []
        if self._reply is not None:
            self._reply.end = self._reply.end or Failed(why)
            out.append(self.close_request(self._reply))
        elif failure is not None:
            self.note_error(f"{failure.message} ({failure.hint})" if failure.hint else failure.message)
        for op, opened in list(self._open_calls.items()):
            stopped = (
                ToolOutput(f"[{why.message}; this call was stopped]", is_error=True),
                self._since(opened.started_s),
            )
            out += self.close_call(op, *stopped)
        self._answer_calls(f"[not run: {why.message}]")
        self._finished = RunExecuteFinished(
            outcome,
            self._usage,
            None if self._cost_unknown else self._cost,
            tuple(self._tools),
            tuple(path for path, (before, after) in self._files.items() if before != after),
            tuple(self._errors),
            self._since(self._started_s),
        )
        out.append(Emitted(self._finished))
        return out

    def _answer_calls(self, text: str) -> None:
        """Providers refuse a conversation in which a call has no result."""
        answered = {message.call_id for message in self.messages if isinstance(message, ToolMessage)}
        for message in list(self.messages):
            if isinstance(message, AssistantMessage):
                missing = [call for call in message.tool_calls if call.id not in answered]
                self.messages += [ToolMessage(call.id, call.name, text, is_error=True) for call in missing]

    def _since(self, start_s: float) -> float:
        return round((self.now_s() - start_s) * 1000, 3)


def unreadable_calls(names: tuple[str, ...]) -> str:
    """What is said of calls that never ran because of their arguments."""
    kinds = list(dict.fromkeys(names))
    shown = ", ".join(_valid(name)[:MAX_TOOL_NAME_CHARS] for name in kinds[:5]) + (", …" if len(kinds) > 5 else "")
    return f"the model called {shown} with arguments that cannot be read: cut off, no JSON, or nested too deep"


_NO_END: Final = Failure("protocol", "the model's stream ended without saying how", "try again")


def _valid(text: str) -> str:
    """Lone surrogates can be neither stored nor sent; what comes from outside loses them here."""
    return text if text.isascii() else safe_str(text, Repairs())


def canonical(call: ToolCall) -> tuple[str, bytes]:
    """What makes two calls the same: the name and the input, whatever the order of its fields."""
    try:
        return call.name, msgspec.json.encode(msgspec.json.decode(call.input), order="sorted")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return call.name, bytes(call.input)
