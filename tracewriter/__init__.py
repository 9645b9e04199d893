"""The recorder: a separate process that keeps the record of everything an agent does, or any other program.

A program records itself with `tracewriter.recording` (any thread, any event loop) and wraps its streams of events with
`tracewriter.recorded` or `recorded_sync`; the event types are in `tracewriter.events`, readers import `tracewriter.reader`.
The process itself is `python -m tracewriter`. What is on disk and on the socket is documented in FORMAT.md beside this file.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's import alone would cost more than this module
if TYPE_CHECKING:
    from tracewriter.streams import recorded as recorded
    from tracewriter.streams import recorded_sync as recorded_sync
    from tracewriter.tool import ToolTrace as ToolTrace
    from tracewriter.tool import recording as recording

__version__ = "0.1.0"
__all__ = ["ToolTrace", "recorded", "recorded_sync", "recording"]


def __getattr__(name: str) -> object:
    """The public names, imported when they are used: quick commands import this package for its paths only."""
    from importlib import import_module

    if name in __all__:
        module = "streams" if name.startswith("recorded") else "tool"
        return getattr(import_module(f"tracewriter.{module}"), name)
    raise AttributeError(f"module 'tracewriter' has no attribute {name!r}")
