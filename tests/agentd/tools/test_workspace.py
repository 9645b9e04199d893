"""Nothing outside the workspace is read, written or created, whatever the path says; with openat2 and without."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.tools.beneath import Opener, choose_opener, open_by_kernel, open_by_walk
from agentd.tools.workspace import PathError, Stopped, Workspace

CANARY = b"canary: must never be seen or changed"


def yes() -> bool:
    return True


@pytest.fixture(params=[open_by_kernel, open_by_walk], ids=["openat2", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    chosen: Opener = request.param
    return chosen


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "canary").write_bytes(CANARY)
    return directory


@pytest.fixture
def workspace(tmp_path: Path, outside: Path, opener: Opener) -> Iterator[Workspace]:
    root = tmp_path / "ws"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "a.py").write_bytes(b"print(1)\n")
    (root / "real").mkdir()
    (root / "real" / "file").write_bytes(b"inside")
    (root / "to_file").symlink_to("src/a.py")
    (root / "to_dir").symlink_to("real")
    (root / "src" / "up_inside").symlink_to("../real/file")
    (root / "out_dir").symlink_to("../outside")
    (root / "out_file").symlink_to("../outside/canary")
    (root / "out_absolute").symlink_to(outside)
    (root / "dangling").symlink_to("../outside/new")
    (root / "dangling_inside").symlink_to("not/there")
    (root / "loop").symlink_to("loop")
    (root / "slashed").symlink_to("src/a.py/")
    (root / "far_up").symlink_to("../" * 30 + "etc/passwd")
    (root / "proc").symlink_to("/proc/self/root")
    ws = Workspace(root, opener=opener)
    yield ws
    ws.close()
    assert sorted(os.listdir(outside)) == ["canary"]
    assert (outside / "canary").read_bytes() == CANARY
    assert not [name for name in os.listdir(tmp_path) if name not in ("ws", "outside", "via_link")]


def read(workspace: Workspace, path: str) -> bytes:
    with workspace.open_file(path) as file:
        return b"".join(file.chunks(1 << 20))


def write(workspace: Workspace, path: str, data: bytes) -> None:
    workspace.replace(path, data, workspace.snapshot(path, 1 << 20), yes)


ESCAPES = [
    "../outside/canary",
    "src/../../outside/canary",
    "src/deep/../../../outside/canary",
    "./../outside/canary",
    "out_dir/canary",
    "out_file",
    "out_absolute/canary",
    "to_dir/../../outside/canary",
    "src/../out_dir/canary",
    "far_up",
    "proc/etc/passwd",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "~/.ssh/id_rsa",
    "~",
]


@pytest.mark.parametrize("path", [*ESCAPES, "{outside}/canary", "{root}/../outside/canary", "{root}2/canary"])
def test_an_escape_is_refused_for_reading_writing_and_listing(workspace: Workspace, outside: Path, path: str) -> None:
    path = path.format(outside=outside, root=workspace.root)
    for act in (
        lambda: read(workspace, path),
        lambda: write(workspace, path, b"x"),
        lambda: workspace.replace(path, b"x", None, yes),
        lambda: workspace.open_directory(path),
    ):
        with pytest.raises(PathError):
            act()


@pytest.mark.parametrize(
    "path", ["out_dir/new", "out_absolute/new", "out_dir/new/deeper/file", "dangling", "dangling/new", "out_dir"]
)
def test_a_new_file_is_never_made_outside_through_a_link(workspace: Workspace, path: str) -> None:
    with pytest.raises(PathError):
        write(workspace, path, b"x")
    with pytest.raises(PathError):
        workspace.replace(path, b"x", None, yes)


def test_a_dangling_link_inside_is_not_filled_in(workspace: Workspace) -> None:
    for path in ("dangling_inside", "dangling_inside/x"):
        with pytest.raises(PathError):
            write(workspace, path, b"x")
    assert not (workspace.root / "not").exists()


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("src/a.py", b"print(1)\n"),
        ("./src//deep/../a.py", b"print(1)\n"),
        ("to_file", b"print(1)\n"),
        ("to_dir/file", b"inside"),
        ("src/up_inside", b"inside"),
        ("nowhere/../real/file", b"inside"),
        ("{root}/real/file", b"inside"),
    ],
)
def test_what_stays_inside_is_read(workspace: Workspace, path: str, data: bytes) -> None:
    assert read(workspace, path.format(root=workspace.root)) == data


def test_an_absolute_path_works_by_the_name_the_user_gave_and_by_the_real_one(
    tmp_path: Path, workspace: Workspace
) -> None:
    link = tmp_path / "via_link"
    link.symlink_to(workspace.root)
    other = Workspace(link)
    assert {other.locate(f"{base}/src/a.py") for base in (link, workspace.root)} == {"src/a.py"}
    assert other.locate(str(link)) == "."
    other.close()


@pytest.mark.parametrize(
    "path", ["slashed", "loop", "src/a.py/x", "src", ".", "", "a\0b", "x" * 256, "d/" * 2500 + "f", "\ud800"]
)
def test_what_cannot_be_read_is_refused_with_one_line(workspace: Workspace, path: str) -> None:
    with pytest.raises(PathError) as caught:
        read(workspace, path)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text.encode()) < 4_000


def test_fifos_and_sockets_are_refused_at_once(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "fifo")
    fd = workspace.open_directory(".")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{fd}/sock")  # tmp_path may be too long for a socket
        os.close(fd)
        for path, kind in (("fifo", "FIFO"), ("sock", "socket")):
            with pytest.raises(PathError, match=kind):
                read(workspace, path)
            with pytest.raises(PathError, match=kind):
                write(workspace, path, b"x")


def test_a_waiting_writer_of_a_fifo_is_not_released(workspace: Workspace) -> None:
    fifo = workspace.root / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(PathError):
        read(workspace, "fifo")
    with pytest.raises(OSError, match="No such device"):  # nobody reads: ENXIO
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


def test_writing_keeps_the_mode_and_leaves_no_temporary_file(workspace: Workspace) -> None:
    script = workspace.root / "src" / "run.sh"
    script.write_bytes(b"old")
    script.chmod(0o751)
    write(workspace, "src/run.sh", b"new")
    assert script.read_bytes() == b"new"
    assert stat.S_IMODE(script.stat().st_mode) == 0o751
    assert sorted(os.listdir(workspace.root / "src")) == ["a.py", "deep", "run.sh", "up_inside"]


@pytest.mark.parametrize(
    ("parent", "file", "directory"), [(0o755, 0o644, 0o755), (0o700, 0o600, 0o700), (0o777, 0o664, 0o775)]
)
def test_what_is_new_is_as_private_as_its_directory_whatever_the_umask(
    workspace: Workspace, parent: int, file: int, directory: int
) -> None:
    (workspace.root / "src").chmod(parent)
    old = os.umask(0o077)
    try:
        write(workspace, "src/sub/new", b"")
        write(workspace, "src/new", b"")
    finally:
        os.umask(old)
    made = [stat.S_IMODE((workspace.root / "src" / name).stat().st_mode) for name in ("sub", "sub/new", "new")]
    assert made == [directory, file, file]


def test_a_hard_link_elsewhere_keeps_the_old_contents(workspace: Workspace) -> None:
    os.link(workspace.root / "src/a.py", workspace.root / "twin")
    write(workspace, "src/a.py", b"new")
    assert (workspace.root / "twin").read_bytes() == b"print(1)\n"


def test_a_link_at_the_target_is_named_not_written_through(workspace: Workspace) -> None:
    with pytest.raises(PathError, match=r"symbolic link to src/a\.py"):
        write(workspace, "to_file", b"x")
    assert (workspace.root / "src/a.py").read_bytes() == b"print(1)\n"
    assert (workspace.root / "to_file").is_symlink()


def test_a_new_file_gets_its_parents_also_below_a_link_that_stays_inside(workspace: Workspace) -> None:
    write(workspace, "to_dir/x/y/new", b"new")
    assert (workspace.root / "real/x/y/new").read_bytes() == b"new"
    (workspace.root / "src" / "up").symlink_to("../real")
    write(workspace, "src/up/z/new", b"new")
    assert (workspace.root / "real/z/new").read_bytes() == b"new"


def test_a_read_only_file_is_left_alone(workspace: Workspace) -> None:
    (workspace.root / "real/file").chmod(0o444)
    with pytest.raises(PathError, match="read-only"):
        write(workspace, "real/file", b"x")


@pytest.mark.parametrize("path", ["src/", ".", "src", "new/"])
def test_a_directory_is_no_target(workspace: Workspace, path: str) -> None:
    with pytest.raises(PathError, match="directory"):
        write(workspace, path, b"x")
    assert not (workspace.root / "new").exists()


def test_a_failure_leaves_the_old_file_no_temporary_file_and_no_new_directory(workspace: Workspace) -> None:
    def never() -> bool:
        return False

    def full() -> bool:
        raise OSError(errno.ENOSPC, "")

    before = workspace.snapshot("src/a.py", 100)
    for path, snapshot in (("src/a.py", before), ("x/y/new", None)):
        with pytest.raises(Stopped):
            workspace.replace(path, b"new", snapshot, never)
        with pytest.raises(PathError, match="the disk is full"):
            workspace.replace(path, b"new", snapshot, full)
    assert read(workspace, "src/a.py") == b"print(1)\n"
    assert sorted(os.listdir(workspace.root / "src")) == ["a.py", "deep", "up_inside"]
    assert not (workspace.root / "x").exists()


def test_a_file_changed_or_made_by_someone_else_meanwhile_wins(workspace: Workspace) -> None:
    before = workspace.snapshot("src/a.py", 100)
    (workspace.root / "src/a.py").write_bytes(b"theirs")
    with pytest.raises(PathError, match="someone else"):
        workspace.replace("src/a.py", b"mine", before, yes)
    assert read(workspace, "src/a.py") == b"theirs"
    with pytest.raises(PathError, match="someone else"):
        workspace.replace("src/a.py", b"mine", None, yes)


def test_a_temporary_name_that_is_taken_is_not_followed(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    (root / ".agentd-guess.tmp").symlink_to("../outside/canary")
    ws = Workspace(root, new_token=lambda: "guess")
    with pytest.raises(PathError, match="there already"):
        ws.replace("file", b"x", None, yes)
    ws.close()
    assert (outside / "canary").read_bytes() == CANARY


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_without_openat2_the_walk_is_chosen(tmp_path: Path, code: int) -> None:
    def missing(root: int, path: str, flags: int) -> int:
        raise OSError(code, os.strerror(code))

    fd = os.open(tmp_path, os.O_PATH)
    assert choose_opener(fd, missing) is open_by_walk
    assert choose_opener(fd) is open_by_kernel
    os.close(fd)


def test_no_descriptor_is_left_open(workspace: Workspace) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for path in [*ESCAPES, "src/a.py", "to_dir/file", "slashed", "loop", "src", "missing/x"]:
        for act in (lambda p: read(workspace, p), lambda p: write(workspace, p, b"x"), workspace.is_directory):
            try:
                act(path)
            except PathError:
                pass
    assert count() == before


LINKS = ["rooted", "to_dir", "to_file", "out_dir", "out_absolute", "dangling", "loop", "proc"]
PARTS = st.sampled_from([*LINKS, "src", "real", "a.py", "file", "canary", "outside", "..", ".", "~", "etc", "new"])
PATHS = st.one_of(
    st.text(max_size=60),
    st.lists(PARTS | st.text(max_size=5), max_size=7).map("/".join),
    st.lists(PARTS, max_size=6).map(lambda parts: "/" + "/".join(parts)),
)


@given(paths=st.lists(PATHS, max_size=8))
def test_no_path_gets_out_and_both_openers_agree(tmp_path_factory: pytest.TempPathFactory, paths: list[str]) -> None:
    base = tmp_path_factory.mktemp("any")
    outside = base / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(CANARY)
    root = base / "ws"
    (root / "src").mkdir(parents=True)
    (root / "real").mkdir()
    (root / "real" / "file").write_bytes(b"inside")
    for name, target in (
        ("to_dir", "real"),
        ("to_file", "real/file"),
        ("out_dir", "../outside"),
        ("out_absolute", str(outside)),
        ("rooted", "/real/file"),
    ):
        (root / name).symlink_to(target)
    (root / "dangling").symlink_to("../outside/new")
    (root / "loop").symlink_to("loop")
    (root / "proc").symlink_to("/proc/self/root")
    with_kernel, with_walk = Workspace(root, opener=open_by_kernel), Workspace(root, opener=open_by_walk)

    def outcome(workspace: Workspace, path: str) -> bytes | str:
        try:
            return read(workspace, path)
        except PathError:
            return "refused"

    for path in [*paths, *(f"{root}/{path}" for path in paths)]:
        assert outcome(with_kernel, path) == outcome(with_walk, path)
        assert outcome(with_kernel, path) in (b"inside", b"x", "refused")
        for workspace in (with_kernel, with_walk):
            try:
                write(workspace, path, b"x")
            except PathError:
                pass
    with_kernel.close()
    with_walk.close()
    assert sorted(os.listdir(base)) == ["outside", "ws"]
    assert {name: (outside / name).read_bytes() for name in os.listdir(outside)} == {"canary": CANARY}
