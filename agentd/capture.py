"""What of an event is recorded in capture mode `metadata`. The decision is the recorder's, and so it holds for every tool."""

from tracewriter.capture import NOT_CAPTURED as NOT_CAPTURED
from tracewriter.capture import metadata_of as metadata_of
