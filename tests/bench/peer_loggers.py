"""The peers of the bench as programs of their own, for whatever interpreter has them installed:
`python peer_loggers.py NAME SIZE COUNT FILE` logs COUNT events of SIZE bytes into FILE and prints events per second."""

from __future__ import annotations

import importlib.util
import json
import logging
import logging.handlers
import queue
import sys
import time
from collections.abc import Callable

NOT_INSTALLED = 3


def payload(text: str) -> dict[str, object]:
    """What every peer logs."""
    return {"id": "call_1", "name": "read_file", "output": text, "is_error": False, "duration_ms": 1.25}


def stdlib(path: str, text: str, count: int) -> None:
    """logging.FileHandler with a JSON message."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log_json(handler, text, count)
    handler.close()


def stdlib_queue(path: str, text: str, count: int) -> None:
    """logging through QueueHandler and QueueListener."""
    target = logging.FileHandler(path)
    target.setFormatter(logging.Formatter("%(message)s"))
    waiting: queue.Queue[logging.LogRecord] = queue.Queue()
    listener = logging.handlers.QueueListener(waiting, target)
    listener.start()
    _log_json(logging.handlers.QueueHandler(waiting), text, count)
    listener.stop()
    target.close()


def _log_json(handler: logging.Handler, text: str, count: int) -> None:
    logger = logging.Logger("bench")
    logger.addHandler(handler)
    for seq in range(count):
        record = {"seq": seq, "ts": time.time(), "event": "tool.call.finished", "data": payload(text)}
        logger.info(json.dumps(record))


def loguru(path: str, text: str, count: int) -> None:
    """loguru with its JSON sink."""
    from loguru import logger  # type: ignore[import-not-found,unused-ignore]

    logger.remove()
    logger.add(path, serialize=True, format="{message}")
    for seq in range(count):
        logger.bind(seq=seq, **payload(text)).info("tool.call.finished")
    logger.remove()


def structlog(path: str, text: str, count: int) -> None:
    """structlog rendering with orjson into a file."""
    import orjson  # type: ignore[import-not-found,unused-ignore]
    import structlog as library  # type: ignore[import-not-found,unused-ignore]

    with open(path, "wb") as file:
        library.configure(
            processors=[
                library.processors.add_log_level,
                library.processors.TimeStamper(fmt="iso", utc=True),
                library.processors.JSONRenderer(serializer=orjson.dumps),
            ],
            logger_factory=library.BytesLoggerFactory(file=file),
            cache_logger_on_first_use=True,
        )
        log = library.get_logger()
        for seq in range(count):
            log.info("tool.call.finished", seq=seq, data=payload(text))


def otel(path: str, text: str, count: int) -> None:
    """OpenTelemetry spans, in batches, exported to a file as JSON."""
    from opentelemetry.sdk.trace import TracerProvider  # type: ignore[import-not-found,unused-ignore]
    from opentelemetry.sdk.trace.export import (  # type: ignore[import-not-found,unused-ignore]
        BatchSpanProcessor,
        ConsoleSpanExporter,
    )

    with open(path, "w") as file:
        exporter = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=count + 10))
        tracer = provider.get_tracer("bench")
        for seq in range(count):
            with tracer.start_as_current_span("tool.call.finished") as span:
                for name, value in payload(text).items():
                    span.set_attribute(name, value)
                span.set_attribute("seq", seq)
        provider.shutdown()


PEERS: dict[str, tuple[Callable[[str, str, int], None], str, int]] = {
    "logging": (stdlib, "logging", 1),
    "logging, queue": (stdlib_queue, "logging", 1),
    "loguru": (loguru, "loguru", 4),
    "structlog + orjson": (structlog, "structlog", 1),
    "OpenTelemetry SDK": (otel, "opentelemetry.sdk", 16),
}


def main() -> int:
    """The command. Exits with NOT_INSTALLED when the peer is not there."""
    name, size, count, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    work, module, _ = PEERS[name]
    if importlib.util.find_spec(module.split(".")[0]) is None:
        return NOT_INSTALLED
    text = "x" * max(1, size - 252)
    started = time.perf_counter()
    work(path, text, count)
    print(count / (time.perf_counter() - started))
    return 0


if __name__ == "__main__":
    sys.exit(main())
