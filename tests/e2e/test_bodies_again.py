"""`agentctl trace context --body` beside what the model's server really got: over several runs, a restart, and payloads."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.harness import Home, of, records
from tests.e2e.model import Model, call, text, turns


def bodies(home: Home) -> list[Any]:
    """Every recorded request of the only session, made again."""
    found = records(home.trace())
    made = []
    for run in dict.fromkeys(record["run"] for record in found if "run" in record):
        listed = home.ctl("trace", "context", run, "--json").ok().json()["requests"]
        for line in listed:
            made.append(home.ctl("trace", "context", run, "--request", str(line["number"]), "--body").ok().json())
    return made


def test_every_body_is_made_again_from_the_record(home: Home) -> None:
    (home.workspace / "a.txt").write_text("0123456789 äöü\u2028 \\ \x1b[0m\n" * 700)  # a result over 16 KiB
    with Model(turns(call("read_file", path="a.txt"), call("list_files"), text("done"))) as model:
        home.ask(model.url, "-b", "one \U0001f600").ok()
        home.ask(model.url, "-c", "two").ok()
        home.ctl("stop").ok()
        home.ask(model.url, "-c", "three").ok()
        home.ctl("stop").ok()
    asked = [asked.body for asked in model.asked]
    assert len(asked) == 9
    assert len(asked[-1]["messages"]) == 18
    assert bodies(home) == asked
    # Each result is in its own record, and once more where the conversation came from the store.
    assert json.dumps(records(home.trace()), ensure_ascii=False).count("0123456789 äöü") <= 3 * 700 + 2 * 700
    assert len(of("model.request.started", records(home.trace()))) == 9
