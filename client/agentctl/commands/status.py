"""agentctl status: does it run, what does it do, does it record. Never starts anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl import format as fmt
from agentctl import wire
from agentctl.errors import DONE, NO_DAEMON
from agentctl.starting import find_daemon
from agentd.paths import agentd_socket, traces_dir

if TYPE_CHECKING:
    from agentctl.arguments import Parsed
    from agentctl.wire import Json
    from agentctl.world import World


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 when a daemon answered, 3 when there is none."""
    # Who asks how it goes wants to hear of a silence when others would begin to worry.
    found = find_daemon(world.env, world.patience._replace(greet_s=world.patience.slow_s))
    if found is None:
        return _absent(parsed, world)
    connection, _ = found
    try:
        status = connection.call("daemon/status", {})
    finally:
        connection.close()
    if parsed.has("json"):
        world.out.json({"up": True, "socket": agentd_socket(world.env), **status, **_here(world)})
        return DONE
    for line in lines(status):
        world.out.line(line)
    if _switched_off(world):
        world.out.line("AGENTD_NO_TRACE is set in this shell: sessions created from here are not recorded")
    return DONE


def _absent(parsed: Parsed, world: World) -> int:
    socket = agentd_socket(world.env)
    if parsed.has("json"):
        world.out.json({"up": False, "socket": socket, "traces": traces_dir(world.env), **_here(world)})
    else:
        world.out.line("agentd is not running")
        world.out.note(f"`agentctl ask` starts it; it would listen at {socket}")
    return NO_DAEMON


def lines(status: Json) -> list[str]:
    """The answer to daemon/status, for people."""
    recording = wire.recording(wire.obj(status, "recording"))
    numbers = {name: wire.integer(status, name) for name in ("sessions", "running", "queued", "clients")}
    uptime = fmt.duration((wire.number(status, "uptime_s") or 0.0) * 1000)
    kept = f" in {recording.root}" if recording.root else ""
    why = f": {recording.reason}" if recording.reason else ""
    unrecorded = wire.integer(status, "unrecorded")
    off = f"; {fmt.count(unrecorded, 'open session')} not recorded" if unrecorded else ""
    return [
        f"agentd {wire.string(status, 'agentd')} runs, pid {wire.integer(status, 'pid')}, for {uptime}",
        f"sessions: {numbers['sessions']} open, {numbers['running']} running, {numbers['queued']} prompts queued, "
        f"{fmt.count(numbers['clients'], 'client')}",
        f"recording: {recording.state or 'unknown'}{why}{kept}{off}",
    ]


def _here(world: World) -> Json:
    return {"no_trace_here": True} if _switched_off(world) else {}


def _switched_off(world: World) -> bool:
    return world.env.get("AGENTD_NO_TRACE", "") not in ("", "0")
