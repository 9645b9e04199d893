"""The command-line client of agentd. Quick commands import neither asyncio, httpx nor msgspec: start-up time is a feature."""

# Told to the daemon and by --version; a test holds it equal to the distribution's (reading that costs 20 ms).
__version__ = "0.1.0"
