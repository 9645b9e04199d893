"""agentctl models: which models can be asked, of every provider with a key and of local servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentctl import format as fmt
from agentctl import wire
from agentctl.commands.ask import wanted_env
from agentctl.errors import DONE, INCOMPLETE
from agentctl.starting import open_daemon
from agentctl.undecodable import require_text

if TYPE_CHECKING:
    from agentctl.arguments import Parsed
    from agentctl.wire import Json
    from agentctl.world import World

SHOWN: Final = 10  # of each provider, unless all are wanted


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 when something can be asked (or the provider named can), else 1."""
    provider = parsed.operands[0] if parsed.operands else ""
    require_text("models: PROVIDER", provider, "see agentctl models --help")
    connection, hello = open_daemon(world.env, patience=world.patience, note=world.out.note)
    try:
        params: Json = {"env": wanted_env(hello.env, world.env), "refresh": parsed.has("refresh")}
        if provider:
            params["provider"] = provider
        answer = connection.call("model/list", params)
    finally:
        connection.close()
    rows = answer.get("providers")
    providers = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if parsed.has("json"):
        world.out.json(answer)
    else:
        for line in lines(providers, None if provider or parsed.has("all") else SHOWN):
            world.out.line(line)
    return DONE if any(wire.string(row, "state") == "ok" for row in providers) else INCOMPLETE


def lines(providers: list[Json], shown: int | None) -> list[str]:
    """The answer to model/list, for people: who can be asked first, then who gave no list, then which keys are missing."""
    by_state: dict[str, list[Json]] = {"ok": [], "failed": [], "no_key": []}
    for row in providers:
        by_state.setdefault(wire.string(row, "state"), []).append(row)
    out = [line for row in by_state["ok"] for line in _listed(row, shown)]
    for row in by_state["failed"]:
        hint = wire.string(row, "hint")
        out.append(f"{wire.string(row, 'provider')}: {wire.string(row, 'reason')}{f' ({hint})' if hint else ''}")
    out += [wire.string(row, "reason") for row in by_state["no_key"]]
    if providers and not by_state["ok"] and len(providers) > 1:
        out.append("no model can be asked yet: export a key, start a local server, or try `agentctl demo`")
    return out


def _listed(row: Json, shown: int | None) -> list[str]:
    listed = row.get("models")
    models = [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
    provider, age_s = wire.string(row, "provider"), wire.number(row, "age_s") or 0.0
    notes = [fmt.count(len(models), "model")]
    notes += ["local"] if row.get("local") is True else []
    notes += [f"as of {fmt.duration(age_s * 1000)} ago"] if age_s >= 1 else []
    first = sorted(models, key=lambda model: wire.string(model, "model") != wire.string(row, "default"))
    out = [f"{provider}: {', '.join(notes)}"]
    for model in first[:shown]:
        tokens = wire.integer(model, "context_tokens")
        window = f"  {tokens:,} tokens" if tokens else ""
        out.append(f"  {provider}/{wire.string(model, 'model')}{window}")
    if shown is not None and len(models) > shown:
        out.append(f"  … and {len(models) - shown:,} more: agentctl models {provider}")
    return out
