"""The coding agent's daemon: sessions, the agent loop, providers and tools behind one Unix socket (PROTOCOL.md)."""
