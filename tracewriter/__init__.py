"""The recorder: a separate process that keeps the record of everything an agent does.

Producers import `tracewriter.sender` (and the event types in `tracewriter.events`); readers import `tracewriter.reader`;
the process itself is `python -m tracewriter`. What is on disk and on the socket is documented in FORMAT.md beside this file.
"""

__version__ = "0.1.0"
