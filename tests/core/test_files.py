"""Saved files are whole: killed writers, two writers, full disks, links, permissions and streams."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxplan
from benchmarks.files.kills import kill_writers
from jaxplan import SaveError
from jaxplan.core import _files
from jaxplan.core._files import check_folder, check_writable, write_whole
from jaxplan.mesh import Topology
from jaxplan.mesh.profile import measure

OLD, NEW = "old\n" * 1000, "new\n" * 200_000
"""The new one does not reach the disk in one piece."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the old content in a folder of its own."""
    path = tmp_path / "plan.json"
    path.write_text(OLD)
    return path


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked process; its exit status, or minus the signal that ended it."""
    process = os.fork()
    if not process:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


# writers that are killed, and two at once


def test_killed_writers_leave_whole_files_and_no_temporary_ones(tmp_path: Path) -> None:
    versions = {
        name: [lambda path, text=text * size: write_whole(path, text) for text in ("a", "b")]
        for name, size in (("small.json", 10), ("large.json", 3_000_000))
    }
    tally = kill_writers(versions, tmp_path, kills=60)
    assert (tally.kills, tally.torn, tally.left) == (90, 0, 0)
    assert tally.reads > 60
    assert names(tmp_path) == ["large.json", "small.json"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_writer_killed_at_each_moment_leaves_the_old_file(
    call: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(_files.os, call, die)
        assert in_child(lambda: write_whole(path, NEW)) == -signal.SIGKILL
    assert path.read_text() == OLD
    assert len(names(path.parent)) == 2
    write_whole(path, NEW)
    assert path.read_text() == NEW
    assert names(path.parent) == ["plan.json"]


def test_the_temporary_file_of_a_living_writer_stays(path: Path) -> None:
    temporary, descriptor = _files._create_locked(path, 0o600)
    write_whole(path, NEW)
    assert temporary.exists()
    os.close(descriptor)
    write_whole(path, NEW)
    assert names(path.parent) == ["plan.json"]


def test_files_of_others_with_similar_names_stay(path: Path) -> None:
    others = [".plan.json.tmp", ".plan.json.0123456789abcdef.tmp2", ".plan2.json.0123456789abcdef.tmp", "plan.json.tmp"]
    for name in others:
        (path.parent / name).write_text(name)
    write_whole(path, NEW)
    assert names(path.parent) == sorted([*others, "plan.json"])


def test_of_two_writers_one_wins_with_its_whole_content(path: Path) -> None:
    contents, seen, stop = ["a" * 300_000, "b" * 1_000_000], set(), threading.Event()

    def write(text: str) -> None:
        for _ in range(20):
            write_whole(path, text)

    def read() -> None:
        while not stop.is_set():
            seen.add(path.read_text())

    writers = [threading.Thread(target=write, args=(text,)) for text in contents]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert path.read_text() in contents
    assert seen <= {OLD, *contents}
    assert names(path.parent) == ["plan.json"]


# disks that are full


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_what_the_disk_refuses_leaves_the_old_file(
    call: str, number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(_files.os, call, refuse)
        with pytest.raises(SaveError, match=r"(?s)expected.*likely cause.*fix:.*the old file is as it was") as caught:
            write_whole(path, NEW)
    assert caught.value.errno == number and os.strerror(number) in str(caught.value)
    assert path.read_text() == OLD
    assert names(path.parent) == ["plan.json"]


def test_the_system_refuses_after_a_part_was_written(path: Path) -> None:
    """A limit of the file's size, as a full disk: the first bytes are written, the next are not."""

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(NEW) // 2, len(NEW) // 2))
        with pytest.raises(SaveError, match="larger than the process"):
            write_whole(path, NEW)

    assert in_child(write) == 0
    assert path.read_text() == OLD
    assert names(path.parent) == ["plan.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_device_that_is_full() -> None:
    with pytest.raises(SaveError, match="the disk is full"):
        write_whole("/dev/full", NEW)


# links, permissions, streams


def test_a_symbolic_link_stays_and_its_target_is_replaced(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.json"
    link.symlink_to("../plan.json")
    write_whole(link, NEW)
    assert link.is_symlink() and path.read_text() == NEW
    assert names(link.parent) == ["link.json"]
    path.unlink()
    write_whole(link, OLD)  # a link to nothing makes its target
    assert link.is_symlink() and path.read_text() == OLD
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(SaveError, match="circle"):
        write_whole(circle, NEW)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666])
def test_permissions_of_the_old_file_are_kept(mode: int, path: Path, umask: Callable[[int], int]) -> None:
    umask(0o027)
    path.chmod(mode)
    write_whole(path, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_of_the_umask(
    mask: int, mode: int, tmp_path: Path, umask: Callable[[int], int]
) -> None:
    umask(mask)
    write_whole(tmp_path / "new.json", NEW)
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == mode


def test_a_private_file_is_never_readable_by_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o600)
    modes, create = [], _files._create_locked

    def watch(target: Path, mode: int) -> tuple[Path, int]:
        temporary, descriptor = create(target, mode)
        modes.append(stat.S_IMODE(temporary.stat().st_mode))
        return temporary, descriptor

    monkeypatch.setattr(_files, "_create_locked", watch)
    write_whole(path, NEW)
    assert modes == [0o600]


def test_a_write_protected_file_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o444)
    if os.access(path, os.W_OK):  # root may write everything
        monkeypatch.setattr(_files.os, "access", lambda *_: False)
    with pytest.raises(SaveError, match="write-protected"):
        write_whole(path, NEW)
    assert path.read_text() == OLD


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("missing/plan.json", "its folder does not exist"),
        ("plan.json/plan.json", "a part of the path is a file"),
        (".", "the path names a folder"),
        ("x" * 300, "the name is too long"),
        ("nul\0l.json", "characters that no path can have"),
        (None, "not a string"),
    ],
)
def test_paths_that_cannot_be_written(name: str | None, cause: str, path: Path) -> None:
    with pytest.raises(SaveError, match=re.escape(cause)):
        write_whole(name if name is None else path.parent / name, NEW)  # type: ignore[arg-type]
    with pytest.raises(SaveError, match=re.escape(cause)):
        check_writable(name if name is None else path.parent / name)  # type: ignore[arg-type]
    assert path.read_text() == OLD


def test_a_check_leaves_nothing_behind(path: Path) -> None:
    check_writable(path)
    check_writable(path.parent / "new.json")
    check_writable(os.devnull)
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]
    assert path.read_text() == OLD


def test_folders_that_cannot_be_made_are_refused_before_a_search(path: Path) -> None:
    def step(x: jax.Array) -> jax.Array:
        raise AssertionError("traced before the folder was checked")

    check_folder(path.parent)
    check_folder(path.parent / "to" / "be" / "made")
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]
    for folder in (path, path / "below", "nul\0l"):
        with pytest.raises(SaveError, match="a folder that exists, or can be made"):
            check_folder(folder)
    with pytest.raises(SaveError, match="cannot keep files in the folder"):
        jaxplan.plan(step, np.ones((8, 8)), topology="cpu:4", verify=True, cache_dir=path / "below")
    with pytest.raises(SaveError, match="its folder does not exist"):
        measure(path.parent / "missing" / "table.json", topology="cpu:8")


def test_long_names_have_room_for_the_temporary_one(tmp_path: Path) -> None:
    for name in ("x" * 255, "ü" * 127):
        write_whole(tmp_path / name, NEW)
        assert (tmp_path / name).read_text() == NEW
    assert len(names(tmp_path)) == 2


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, NEW)
    reader.join()
    assert received == [NEW]
    write_whole("/dev/null", NEW)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


# everything that the project saves


def test_all_files_of_the_package_are_written_through_one_function() -> None:
    """But for the journal of measurements, which grows line by line, and the scratch folder of a compilation."""
    package = Path(jaxplan.__file__).parent
    writes = re.compile(r"write_text|write_bytes|savefig\((?!drawn)|open\([^)]*[\"'][wax]b?[\"']|json\.dump\(")
    found = {p.name for p in package.rglob("*.py") if writes.search(p.read_text(encoding="utf-8"))}
    assert found == {"_files.py", "_journal.py", "_aot.py", "_aot_child.py"}


def test_a_topology_is_saved_whole(tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    Topology.parse("h100:8").save(path)
    before = path.read_bytes()
    with pytest.raises(SaveError, match="its folder does not exist"):
        Topology.parse("h100:2x8").save(tmp_path / "missing" / "topology.json")
    assert path.read_bytes() == before and Topology.load(path).name == "h100:8"
