"""A run as it happens: the answer on stdout, one line per tool call and what went wrong on stderr.

Deltas may be missed (a client that joined late, or was too slow): each says at which offset it stands, and the finished
request carries the whole text, so every code point is shown once and in order, whatever came when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl import format as fmt
from agentctl import wire
from agentctl.output import fit
from agentctl.safe_text import safe_line

if TYPE_CHECKING:
    from agentctl.output import Output

# Text of the model that is part of the answer: a refusal must reach the user, reasoning is not the answer.
_ANSWER = ("text", "refusal")


class LiveRun:
    """Shows one run. `quiet` leaves the tool lines out; errors are always shown."""

    def __init__(self, out: Output, *, quiet: bool = False) -> None:
        self._out = out
        self._quiet = quiet
        self._shown: dict[tuple[str, str], int] = {}  # code points by op and kind
        self._asides: set[str] = set()  # requests that are not the answer: summaries, titles
        self._calls: dict[str, str] = {}  # main argument by op
        self.errors: list[str] = []

    def delta(self, delta: wire.Delta) -> None:
        """Show the part of a piece that continues what was shown; a piece after a hole waits for the finished request."""
        if delta.kind not in _ANSWER or delta.op in self._asides:
            return
        shown = self._shown.setdefault((delta.op, delta.kind), 0)
        if delta.offset <= shown < delta.offset + len(delta.text):
            self._show(delta.op, delta.kind, delta.text[shown - delta.offset :])

    def event(self, op: str, fact: wire.Fact) -> None:
        """Show what a fact of this run says."""
        match fact:
            case wire.RequestStarted(purpose):
                if purpose not in ("main", ""):
                    self._asides.add(op)
            case wire.RequestFinished(text, refusal):
                self._request_ended(op, text, refusal)
            case wire.RequestFailed(message, hint, text):
                self._request_ended(op, text, "")
                self._error(message, hint)
            case wire.Retry(_, _, message, other) if other:  # the failure itself was shown just before
                self._out.note_line(f"asking {other} instead", "yellow")
            case wire.Retry(attempt, wait_ms, message):
                self._note(f"{message}; attempt {attempt} in {fmt.duration(wait_ms)}", "yellow")
            case wire.ToolStarted(_, argument):
                self._calls[op] = argument
            case wire.ToolFinished(name, is_error, output, duration_ms):
                self._tool(op, name, is_error, output, duration_ms)
            case wire.RunStarted() | wire.RunFinished() | wire.PromptMoved() | wire.SaveFailed() | wire.Other():
                pass

    def _show(self, op: str, kind: str, text: str) -> None:
        self._shown[op, kind] = self._shown.get((op, kind), 0) + len(text)
        self._out.text(text)

    def _request_ended(self, op: str, text: str, refusal: str) -> None:
        if op in self._asides:
            self._asides.discard(op)
            return
        for kind, whole in zip(_ANSWER, (text, refusal), strict=True):
            missing = whole[self._shown.get((op, kind), 0) :]
            if missing:
                self._show(op, kind, missing)
            self._shown.pop((op, kind), None)
        self._out.end_line()

    def _tool(self, op: str, name: str, is_error: bool, output: str, duration_ms: float) -> None:
        if self._quiet:
            return
        argument = safe_line(self._calls.pop(op, ""))
        took = fmt.duration(duration_ms)
        head = f"{self._out.mark(not is_error)} {name}"
        tail = f"  {took}" if not is_error else f"  {took}  {fmt.first_line(output)}"
        # The argument gives way, so that the outcome stays visible on a narrow terminal.
        room = max(10, self._out.width() - len(head) - len(took) - 3)
        self._out.note_line(
            f"{head}{' ' + fit(argument, room) if argument else ''}{tail}", "red" if is_error else "dim"
        )

    def _error(self, message: str, hint: str) -> None:
        self.errors.append(message)
        self._out.end_line()
        self._out.note(f"error: {message}", "red")
        if hint:
            self._out.note(f"  {hint}")

    def _note(self, text: str, style: str) -> None:
        if not self._quiet:
            self._out.note_line(text, style)


def run_line(session: str, run: wire.RunFinished, *, local: bool = False) -> str:
    """The last line of a run: which session, how it ended, what it used and cost (of a `local` model it says why nothing)."""
    parts = [
        f"session {fmt.short_id(session)}",
        run.outcome,
        fmt.count(run.tools, "tool call"),
        *([fmt.count(len(run.files), "file") + " changed"] if run.files else []),
        fmt.usage(run.input_tokens, run.output_tokens, run.cache_read_tokens),
        fmt.cost(run.cost_usd) + (" (local model)" if local and run.cost_usd == 0 else ""),
        fmt.duration(run.duration_ms),
    ]
    return " · ".join(parts)
