"""agentctl trace status: how recording goes, from the recorder, the daemon and the files. Needs neither of the two."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from agentctl import format as fmt
from agentctl import wire
from agentctl.errors import DONE, NO_DAEMON, ClientError
from agentctl.safe_text import safe_line
from agentctl.starting import find_daemon
from agentd.paths import config_file, traces_dir, writer_socket
from tracewriter.client import NoWriter, Status, ask_status
from tracewriter.retention import Forecast, Policy, PolicyError, forecast, load_policy
from tracewriter.trash import Traces

if TYPE_CHECKING:
    from agentctl.arguments import Parsed
    from agentctl.output import Output
    from agentctl.wire import Json
    from agentctl.world import World
    from tracewriter.client import SessionStatus
    from tracewriter.retention import Candidate, Trashed


_SUMMED: Final = ("emitted", "acknowledged", "dropped", "queued_bytes", "recorded", "bytes", "segments")


class Kept(NamedTuple):
    """What the files say. policy None: it cannot be read (`problem` says why), so nothing is deleted."""

    policy: Policy | None
    problem: str
    candidates: list[Candidate]
    trash: list[Trashed]
    next: Forecast | None

    @property
    def bytes(self) -> int:
        """Disk blocks of everything, the trash included."""
        return sum(c.bytes for c in self.candidates) + sum(t.bytes for t in self.trash)

    @property
    def over(self) -> int:
        """Bytes above the budget."""
        return max(0, self.bytes - self.policy.max_bytes) if self.policy is not None else 0


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 when all there is was told, also when neither daemon nor recorder runs; 3 when one is there and does not answer."""
    writer, problem, absent = _ask_writer(world)
    daemon, daemon_problem = _ask_daemon(world)
    kept = _kept(world)
    off = _off(daemon, world)
    code = DONE if not daemon_problem and (writer is not None or absent) else NO_DAEMON
    if parsed.has("json"):
        world.out.json(_document(writer, problem, daemon, daemon_problem, kept, off))
        return code
    out = world.out
    if off:
        out.line(f"recording: off, {off}", "yellow")
    if writer is not None:
        for line in _writer_lines(writer):
            out.line(line, "red" if writer.state != "ok" else "")
    else:
        out.line(f"recorder: {safe_line(problem)}{'; one is started when something is recorded' if absent else ''}")
    out.line(f"daemon: {_daemon_line(daemon, daemon_problem)}")
    for row in _rows(writer, daemon):
        out.line(_row_line(row))
    _show_kept(kept, writer, out)
    return code


# --- asking


def _ask_writer(world: World) -> tuple[Status | None, str, bool]:
    try:
        return ask_status(writer_socket(world.env)), "", False
    except NoWriter as problem:
        return None, str(problem), problem.absent


def _ask_daemon(world: World) -> tuple[Json | None, str]:
    """The daemon's answer to trace/status; None when none runs, or it is too old to know."""
    try:
        found = find_daemon(world.env, world.patience._replace(greet_s=world.patience.slow_s))
        if found is None:
            return None, ""
        connection, _ = found
        try:
            return connection.call("trace/status", {}), ""
        finally:
            connection.close()
    except ClientError as problem:
        return None, f"{problem.message}; {problem.hint}" if problem.hint else problem.message


def _kept(world: World) -> Kept:
    policy: Policy | None = None
    problem = ""
    try:
        policy = load_policy(Path(config_file(world.env)))
    except PolicyError as exc:
        problem = str(exc)
    try:
        with Traces(Path(traces_dir(world.env))) as traces:
            candidates, trash = traces.scan()
    except FileNotFoundError:
        candidates, trash = [], []
    following = forecast(candidates, trash, policy, time.time()) if policy is not None else None
    return Kept(policy, problem, candidates, trash, following)


def _off(daemon: Json | None, world: World) -> str:
    if world.env.get("AGENTD_NO_TRACE", "") not in ("", "0"):
        return "AGENTD_NO_TRACE is set in this shell: sessions created from here are not recorded"
    recording = wire.recording(wire.obj(daemon, "recording")) if daemon is not None else None
    return recording.reason or "switched off" if recording is not None and recording.state == "off" else ""


# --- showing


class Row(NamedTuple):
    """A session that is open now: the recorder's side and the daemon's."""

    session: str
    writer: SessionStatus | None
    daemon: Json | None


def _rows(writer: Status | None, daemon: Json | None) -> list[Row]:
    by_writer = {one.session: one for one in writer.sessions} if writer is not None else {}
    listed = daemon.get("sessions") if daemon is not None else None
    rows = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    by_daemon = {wire.string(one, "session"): one for one in rows}
    return [Row(name, by_writer.get(name), by_daemon.get(name)) for name in sorted(by_writer.keys() | by_daemon.keys())]


def _writer_lines(status: Status) -> list[str]:
    why = f" ({status.reason})" if status.reason else ""
    uptime = fmt.duration(status.uptime_s * 1000)
    recorded, size = sum(s.recorded for s in status.sessions), sum(s.bytes for s in status.sessions)
    open_now = f"{fmt.count(len(status.sessions), 'session')} open, {fmt.count(recorded, 'record')}, {fmt.size(size)}"
    return [
        f"recorder: {status.state}{why}, pid {status.pid}, for {uptime}, "
        f"{fmt.count(status.connections - 1, 'producer')}, durability {status.durability}",
        f"  {open_now}",
    ]


def _daemon_line(daemon: Json | None, problem: str) -> str:
    if daemon is None:
        return safe_line(problem) or "not running"
    recording = wire.recording(wire.obj(daemon, "recording"))
    why = f" ({safe_line(recording.reason)})" if recording.reason else ""
    return f"recording {recording.state or 'unknown'}{why}"


def _row_line(row: Row) -> str:
    parts = []
    state = reason = ""
    if row.daemon is not None and row.writer is None and wire.string(row.daemon, "state") == "off":
        return f"  {fmt.short_id(row.session)}  not recorded: {safe_line(wire.string(row.daemon, 'reason'))}"
    if row.daemon is not None:
        number = {name: wire.integer(row.daemon, name) for name in ("emitted", "recorded", "dropped", "queued_bytes")}
        dropped = ", ".join(f"{name} {count}" for name, count in sorted(wire.obj(row.daemon, "dropped_by").items()))
        why = f" ({dropped})" if dropped else ""
        parts.append(
            f"emitted {number['emitted']:,}, acknowledged {number['recorded']:,}, dropped {number['dropped']:,}{why}, "
            f"queued {fmt.size(number['queued_bytes'])}"
        )
        state, reason = wire.string(row.daemon, "state"), wire.string(row.daemon, "reason")
    if row.writer is not None:
        segments = fmt.count(row.writer.segments, "segment")
        parts.append(f"up to record {row.writer.recorded:,} on disk, {fmt.size(row.writer.bytes)} in {segments}")
        if row.writer.state != "ok" or not state:
            state, reason = row.writer.state, row.writer.reason
    why = f" ({safe_line(reason)})" if reason else ""
    return f"  {fmt.short_id(row.session)}  {state}{why}: {'; '.join(parts)}"


def _show_kept(kept: Kept, writer: Status | None, out: Output) -> None:
    active, pinned = sum(c.active for c in kept.candidates), sum(c.pinned for c in kept.candidates)
    trash = f"{fmt.count(len(kept.trash), 'session')} in the trash ({fmt.size(sum(t.bytes for t in kept.trash))})"
    out.line(f"kept: {fmt.count(len(kept.candidates), 'session')}, {active} active, {pinned} pinned, {trash}")
    if kept.policy is None:
        out.line(f"retention: {safe_line(kept.problem)}", "red")
    else:
        limits = f"{kept.policy.max_age_days:g} days, {fmt.size(kept.policy.max_bytes)}"
        share = f"{fmt.size(kept.bytes)} in use ({100 * kept.bytes / kept.policy.max_bytes:.1f} %)"
        out.line(f"retention: {limits}; {share}{'' if kept.policy.enabled else '; off, as configured'}")
    if kept.over:
        out.line(f"  over the budget by {fmt.size(kept.over)}: {_why_over(kept)}", "red")
    if kept.next is not None:
        when = fmt.local_time(datetime.fromtimestamp(min(kept.next.at, 2.5e11), UTC))
        due = "with the next sweep" if kept.next.at <= time.time() else f"on {when}"
        out.line(f"  next to go: {kept.next.session}, {due}, by {kept.next.reason} (agentctl trace prune --dry-run)")
    if writer is not None and writer.retention:
        out.line(f"  {safe_line(writer.retention)}")
    for one in [c for c in kept.candidates if c.doubt][:8]:
        out.line(f"  left alone: {one.session}: {safe_line(one.doubt)}", "yellow")


def _why_over(kept: Kept) -> str:
    if kept.next is None:
        return "what is there is being recorded, pinned, the newest, or odd, and is never deleted"
    return "sweeps will take a fifth of the sessions at a time"


def _document(
    writer: Status | None, problem: str, daemon: Json | None, daemon_problem: str, kept: Kept, off: str
) -> dict[str, object]:
    rows = [_row_json(row) for row in _rows(writer, daemon)]
    return {
        "recording_off": off or None,
        "writer": msgspec.to_builtins(writer) if writer is not None else None,
        "writer_problem": problem or None,
        "daemon": daemon,
        "daemon_problem": daemon_problem or None,
        "sessions": rows,
        "total": {name: sum(n for row in rows if isinstance(n := row[name], int)) for name in _SUMMED},
        "retention": {
            "policy": msgspec.to_builtins(kept.policy) if kept.policy is not None else None,
            "problem": kept.problem or None,
            "sessions": len(kept.candidates),
            "active": sum(c.active for c in kept.candidates),
            "pinned": sum(c.pinned for c in kept.candidates),
            "odd": [{"session": c.session, "doubt": c.doubt} for c in kept.candidates if c.doubt],
            "trash": len(kept.trash),
            "trash_bytes": sum(t.bytes for t in kept.trash),
            "total_bytes": kept.bytes,
            "over_bytes": kept.over,
            "next": msgspec.to_builtins(kept.next) if kept.next is not None else None,
        },
    }


def _row_json(row: Row) -> dict[str, object]:
    """One session; what only a side that is not there could know is null."""
    side = row.daemon or {}
    return {
        "session": row.session,
        "emitted": side.get("emitted"),
        "acknowledged": side.get("recorded"),
        "dropped": side.get("dropped"),
        "dropped_by": side.get("dropped_by"),
        "queued_bytes": side.get("queued_bytes"),
        "recorded": row.writer.recorded if row.writer is not None else None,
        "bytes": row.writer.bytes if row.writer is not None else None,
        "segments": row.writer.segments if row.writer is not None else None,
        "state": row.writer.state if row.writer is not None else side.get("state"),
        "reason": row.writer.reason if row.writer is not None else side.get("reason"),
    }
