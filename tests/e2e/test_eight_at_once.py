"""Eight `agentctl ask` at once: one daemon, one recorder, eight complete and separate records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import Home, finish, of, records
from tests.e2e.model import Answer, Asked, Model, call, stream, text

EIGHT = range(8)


def decide(asked: Asked) -> Answer:
    number = asked.prompt.split()[-1]
    if asked.turn == 0:
        return stream(call("write_file", path=f"of-{number}.txt", content=f"written for {number}\n"))
    if asked.turn == 1:
        return stream(call("read_file", path=f"of-{number}.txt"))
    return stream(text(f"answer {number}: {asked.results[-1]}"))


def workspaces(home: Home) -> list[Path]:
    """Four directories, for two sessions each."""
    places = [home.place / f"project-{number % 4}" for number in EIGHT]
    for place in places:
        place.mkdir(exist_ok=True)
    return places


@pytest.mark.parametrize("running", [True, False], ids=["one-daemon", "no-daemon-yet"])
def test_eight_complete_separate_verified_records(home: Home, running: bool) -> None:
    with Model(decide) as model:
        if running:
            home.ask(model.url, "number warm").ok()
        old = home.traces()
        options = ("--base-url", model.url, "-m", "scripted", "-b")
        places = workspaces(home)
        asking = [home.start("ask", *options, f"number {n}", cwd=places[n]) for n in EIGHT]
        for number, process in enumerate(asking):
            done = finish(process).ok()
            assert f"answer {number}: " in done.out
            assert f"written for {number}" in done.out
            assert "recording:" not in done.err
        assert len(home.daemons()) == 1
        assert len(home.writers()) == 1
        losers = home.logs().split("\n")[:-1]
        assert all("another agentd runs already" in line for line in losers)
        assert len(losers) <= (0 if running else 7)

        new = [path for path in home.traces() if path not in old]
        assert len(new) == 8
        assert {check(home, path) for path in new} == {str(number) for number in EIGHT}
        assert len({path.parent for path in new}) == 4
        assert len(home.ctl("trace", "ls", "--json").ok().json()["sessions"]) == len(home.traces())
        home.ctl("stop").ok()
        verified = home.ctl("trace", "verify", "--all", "--json").ok().lines()
        assert [one["damaged"] or one["emitted"] != one["records"] for one in verified] == [False] * len(home.traces())


def check(home: Home, path: Path) -> str:
    """Whose record it is; it is complete, and nothing of another session is in it."""
    found = records(path)
    assert {record["session"] for record in found} == {path.name}
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    (started,), (end,) = of("run.execute.started", found), of("run.execute.finished", found)
    number: str = started["text"].split()[-1]
    assert (end["outcome"], end["tools"]) == ("completed", ["write_file", "read_file"])
    assert end["files"] == [f"of-{number}.txt"]
    assert [change["path"] for change in of("file.change.applied", found)] == end["files"]
    assert of("model.request.finished", found)[-1]["text"].startswith(f"answer {number}: ")
    return number
