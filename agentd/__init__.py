"""The coding agent's daemon: sessions, the agent loop, providers and tools behind one Unix socket (PROTOCOL.md)."""

# The same as in pyproject.toml (tested): reading the installed metadata costs more than the rest of the start.
__version__ = "0.1.0"
