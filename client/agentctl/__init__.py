"""The command-line client of agentd. Quick commands import neither asyncio, httpx nor msgspec: start-up time is a feature."""
