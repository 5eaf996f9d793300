"""Scratch folder, start lock and rank record: whose they are, and what they refuse."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.launch import node_lock, rank_record, state_folder
from hpcprof.launch.processes import Fate

pytestmark = pytest.mark.unit

IDENTITY = RankEnv(3, 1, 4, "node1", "77", "1")


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    return tmp_path / f"hpcprof-{os.getuid()}"


def test_the_scratch_folder_is_private(tmp_path: Path, own_folder: Path) -> None:
    folder, problems = state_folder.open_scratch(str(tmp_path), {})

    assert (folder, problems) == (own_folder, [])
    assert own_folder.stat().st_mode & 0o777 == 0o700
    own_folder.chmod(0o755)
    assert state_folder.open_scratch(None, {"TMPDIR": str(tmp_path)}) == (own_folder, [])
    assert own_folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trap", ["link", "file"])
def test_a_scratch_folder_that_is_no_folder_is_refused(
    tmp_path: Path, own_folder: Path, trap: str
) -> None:
    (tmp_path / "target").mkdir()
    if trap == "link":
        own_folder.symlink_to(tmp_path / "target")
    else:
        own_folder.write_text("")
    folder, problems = state_folder.open_scratch(str(tmp_path), {})

    assert folder == Path(f"/tmp/hpcprof-{os.getuid()}")
    assert problems == [f"scratch folder {own_folder} cannot be used: it is not a folder"]
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="giving a folder to another user needs root")
def test_a_scratch_folder_of_another_user_is_refused(tmp_path: Path, own_folder: Path) -> None:
    own_folder.mkdir(mode=0o777)
    os.chown(own_folder, 65534, 65534)
    _, problems = state_folder.open_scratch(str(tmp_path), {})

    assert problems == [f"scratch folder {own_folder} cannot be used: it belongs to another user"]


def test_a_scratch_place_that_does_not_exist_is_named(tmp_path: Path) -> None:
    folder, (problem,) = state_folder.open_scratch(str(tmp_path / "gone"), {})

    assert folder is not None
    assert "No such file or directory" in problem


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize(
    ("options", "obstacle"), [("noexec", "mounted noexec"), ("size=1m", "less than 128 MiB free")]
)
def test_a_scratch_folder_that_nsys_cannot_use_is_told(
    tmp_path: Path, options: str, obstacle: str
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", tmp_path], check=True)
    try:
        assert obstacle in (state_folder.profiler_obstacle(tmp_path) or "")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_path_too_long_for_sockets_is_told(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()

    assert "too long for the sockets" in (state_folder.profiler_obstacle(deep) or "")
    assert state_folder.profiler_obstacle(Path("/tmp")) is None


def test_the_state_of_an_earlier_process_with_our_id_is_replaced(tmp_path: Path) -> None:
    first = state_folder.make_state_folder(tmp_path, IDENTITY)
    (first / "token").write_text("")
    os.close(state_folder._held.pop())  # as the kernel does at a process's end
    second = state_folder.make_state_folder(tmp_path, IDENTITY)

    assert second.name == f"77.1.3.{os.getpid()}"
    assert [path.name for path in second.iterdir()] == ["alive"]
    state_folder.link_package(second)
    state_folder.remove(second)
    assert not second.exists()
    assert Path(state_folder.__file__).exists()  # the link was removed, not what it points to


def test_a_living_launcher_with_our_id_in_another_namespace_keeps_its_folder(
    tmp_path: Path,
) -> None:
    first = state_folder.make_state_folder(tmp_path, IDENTITY)
    (first / "token").write_text("")
    second = state_folder.make_state_folder(tmp_path, IDENTITY)

    assert second.name == f"77.1-2.3.{os.getpid()}"
    name = state_folder.StateName.from_text(second.name)
    assert name == ("77", "1-2", 3, os.getpid())
    assert (first / "token").exists()
    assert list(state_folder.abandoned(tmp_path)) == []


def test_a_folder_of_another_node_is_not_abandoned_though_its_lock_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Lustre with localflock: locks are each node's own."""
    monkeypatch.setattr(state_folder, "_this_node", lambda: b"node2 5b1c")
    there = state_folder.make_state_folder(tmp_path, IDENTITY)
    monkeypatch.undo()
    os.close(state_folder._held.pop())
    empty = tmp_path / "77.1.4.1"
    empty.mkdir()
    (empty / "alive").write_text("")  # of an older hpcprof

    assert list(state_folder.abandoned(tmp_path)) == []
    here = state_folder.make_state_folder(tmp_path, IDENTITY)
    assert here != there and there.is_dir()
    os.close(state_folder._held.pop())
    assert list(state_folder.abandoned(tmp_path)) == [here]


def test_a_file_system_without_locks_takes_a_state_folder_that_nobody_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        folder = state_folder.make_state_folder(tmp_path, IDENTITY)

    assert list(folder.iterdir()) == []
    assert list(state_folder.abandoned(tmp_path)) == []


def test_a_state_folder_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    held = len(state_folder._held)
    with pytest.raises(OSError, match="Permission denied"):
        state_folder.make_state_folder(tmp_path, IDENTITY)

    assert list(tmp_path.iterdir()) == []
    assert len(state_folder._held) == held


def test_two_starts_of_a_rank_cannot_both_claim_it(tmp_path: Path) -> None:
    paths = ArtifactPaths(tmp_path)
    rank_record.claim(paths, IDENTITY, ["a"], {})

    assert paths.manifest_reserve(3).stat().st_size == 16384
    with pytest.raises(rank_record.AlreadyRecordedError):
        rank_record.claim(paths, IDENTITY, ["b"], {})
    paths.manifest(3).unlink()  # as if the other were between its two files
    with pytest.raises(rank_record.AlreadyRecordedError):
        rank_record.claim(paths, IDENTITY, ["b"], {})


def test_many_warnings_do_not_outgrow_the_reserve(tmp_path: Path) -> None:
    paths = ArtifactPaths(tmp_path)
    record = rank_record.claim(paths, IDENTITY, ["a"], {})
    record.warnings += ["w" * 100] * 1000
    record.complete(Fate(0))

    assert paths.manifest(3).stat().st_size < 16384
    warnings = json.loads(paths.manifest(3).read_text())["warnings"]
    assert warnings[-1] == f"{1000 - len(warnings) + 1} further warnings were left out"
    assert warnings[:-1] == ["w" * 100] * (len(warnings) - 1)


def test_the_start_lock_is_for_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lock, "NODE_LOCK", tmp_path / "lock")
    previous = os.umask(0o077)
    try:
        lock = node_lock.NodeLock(tmp_path, time.sleep)
    finally:
        os.umask(previous)

    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o666
    assert lock.problem is None
    with open(tmp_path / "lock", "rb") as other, pytest.raises(OSError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.release()
    with open(tmp_path / "lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "precious").chmod(0o600)
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    monkeypatch.setattr(node_lock, "NODE_LOCK", tmp_path / "lock")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    lock = node_lock.NodeLock(scratch, time.sleep)

    assert lock.problem is None
    assert (scratch / "lock").exists()  # fell back to the user's own
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o600
    lock.release()


def test_a_lock_that_is_never_free_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_lock, "NODE_LOCK", tmp_path / "lock")
    monkeypatch.setattr(node_lock, "_MAX_WAIT_SECONDS", 0.2)
    first = node_lock.NodeLock(tmp_path, time.sleep)
    second = node_lock.NodeLock(tmp_path, time.sleep)

    assert second.problem == "the start lock was not free for 0 s"
    first.release()
    assert node_lock.NodeLock(tmp_path, time.sleep).problem is None


def test_the_lock_of_a_killed_holder_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_lock, "NODE_LOCK", tmp_path / "lock")
    code = (
        "import fcntl, os, signal, sys; f = open(sys.argv[1], 'w');"
        "fcntl.flock(f, fcntl.LOCK_EX); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False)

    assert node_lock.NodeLock(tmp_path, time.sleep).problem is None
