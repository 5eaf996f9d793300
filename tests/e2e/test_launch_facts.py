"""What is known to cost a report or a training under nsys costs no training under the launcher.

Each test is one such fact, with the real nsys; more of them are in test_launch_nsys.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcprof import pipeline
from hpcprof.artifacts.paths import ArtifactPaths
from tests.e2e.launched_rank import (
    ENDS_OF_APPLICATION,
    Rank,
    application,
    ranges,
    wait_for_line,
)
from tests.unit import launching

pytestmark = pytest.mark.e2e

as_root = pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")

# steps of hpcprof's own, and no other ranges
ANNOTATED = """
import sys, time
from hpcprof import annotate
for _ in range(40):
    with annotate.step():
        time.sleep(0.02)
sys.exit(7)
"""
# appends a line and ends with 7
ONE_LINE = "echo started >> {marks}; exit 7"


@pytest.fixture(autouse=True)
def _training_environment(horovod_python: Path) -> Path:
    """The applications use its nvtx."""
    return horovod_python


# options that end the training


@pytest.mark.parametrize(
    "extra",
    [
        ["--duration=1"],
        ["-d", "1", "--kill", "none"],
        ["-d1"],
        ["--duration=1", "--stop-on-exit=true", "--kill=none", "--wait=all"],
    ],
    ids=" ".join,
)
def test_the_training_is_recorded_to_its_own_end(
    nsys: Path, scratch: Path, tmp_path: Path, extra: list[str]
) -> None:
    """nsys would end it after a second, or leave it behind in a job step that has ended."""
    marks = tmp_path / "marks"
    command = application(marks, 2.5)
    rank = Rank(nsys, scratch, tmp_path / "run", command, settings={"nsys_extra": extra})

    assert rank.end() == ENDS_OF_APPLICATION
    assert marks.read_text().splitlines()[1:] == ["end"]
    written = launching.manifest(tmp_path / "run")
    assert (written["state"], written["profiler"]["fell_back"]) == ("OK", False)
    left_out = [warning for warning in written["warnings"] if "was left out" in warning]
    assert left_out and extra[0] in left_out[0]
    # in one second there is time for 50 of them
    assert ranges(nsys, tmp_path / "run/ranks/00003/rank.nsys-rep") > 55


@pytest.mark.parametrize("extra", ["--inherit-environment=false", "-nfalse"])
def test_the_training_keeps_its_environment(
    nsys: Path, scratch: Path, tmp_path: Path, extra: str
) -> None:
    """nsys would start it with seventeen variables, and no rank among them."""
    command = ["/bin/sh", "-c", 'echo "$SLURM_PROCID of $SLURM_STEP_NUM_TASKS, $HPCPROF_RANK"']
    rank = Rank(nsys, scratch, tmp_path / "run", command, settings={"nsys_extra": [extra]})

    assert rank.end() == (0, "3 of 4, 3\n", "")
    written = launching.manifest(tmp_path / "run")
    assert written["state"] == "OK"
    assert [text for text in written["warnings"] if f"nsys option {extra} was left out" in text]


@pytest.mark.parametrize(
    "end",
    [[], ["--capture-range-end=stop-shutdown"], ["--capture-range-end", "stop-shutdown"]],
    ids=["default", "one word", "two words"],
)
def test_the_end_of_a_capture_range_is_not_the_end_of_the_training(
    nsys: Path, scratch: Path, tmp_path: Path, end: list[str]
) -> None:
    """The default of nsys, stop-shutdown, sends TERM to the training."""
    marks = tmp_path / "marks"
    extra = ["--capture-range=nvtx", "--nvtx-capture=step@hpcprof", *end]
    command = application(marks, 2.5)
    rank = Rank(nsys, scratch, tmp_path / "run", command, settings={"nsys_extra": extra})

    assert rank.end() == ENDS_OF_APPLICATION
    assert marks.read_text().splitlines()[1:] == ["end"]
    assert launching.manifest(tmp_path / "run")["state"] == "OK"
    assert 1 <= ranges(nsys, tmp_path / "run/ranks/00003/rank.nsys-rep") < 55


def test_a_capture_range_that_never_begins_is_empty_and_says_why(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    """nsys prints "Generated:", names no file, and returns the training's code."""
    marks = tmp_path / "marks"
    extra = ["--capture-range=nvtx", "--nvtx-capture=never@hpcprof"]
    command = application(marks, 0.5)
    rank = Rank(nsys, scratch, tmp_path / "run", command, settings={"nsys_extra": extra})

    assert rank.end() == ENDS_OF_APPLICATION
    written = launching.manifest(tmp_path / "run")
    assert (written["state"], written["exit_code"]) == ("EMPTY", 7)
    assert written["state_reason"] == "the training never reached the range to record"


# a package nvtx that does not fit


@pytest.fixture(scope="module")
def newer_nvtx(horovod_python: Path) -> Path:
    """Folder with nvtx 0.2.12 for the training's Python, kept in the cache of the set-up."""
    cache = Path(os.environ.get("HPCPROF_CACHE", Path.home() / ".cache" / "hpcprof"))
    name = "import sys; print('nvtx-0.2.12-cp%d%d' % sys.version_info[:2])"
    found = subprocess.run([horovod_python, "-c", name], stdout=subprocess.PIPE, text=True)
    folder = cache / found.stdout.strip()
    if not folder.exists():
        work = folder.with_name(f".{folder.name}.{os.getpid()}")
        fetch = [horovod_python, "-m", "pip", "install", "-qq", "--no-deps", "--target", work]
        done = subprocess.run([*fetch, "nvtx==0.2.12"], capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(work, ignore_errors=True)
            pytest.skip(f"nvtx 0.2.12 cannot be fetched: {done.stderr.strip()[-200:]}")
        work.rename(folder)
    return folder


@pytest.mark.parametrize("fits", [True, False], ids=["0.2.11", "0.2.12"])
def test_an_nvtx_that_nsys_does_not_hear_is_told_by_its_version(
    nsys: Path,
    scratch: Path,
    tmp_path: Path,
    horovod_python: Path,
    newer_nvtx: Path,
    fits: bool,
) -> None:
    run_dir = tmp_path / "run"
    packages = [str(launching.REPOSITORY), *([] if fits else [str(newer_nvtx)])]
    environ = {"PYTHONPATH": os.pathsep.join(packages)}
    environ |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    command = [str(horovod_python), "-c", ANNOTATED]
    rank = Rank(nsys, scratch, run_dir, command, environ=environ)

    assert rank.end() == (7, "", "")
    written = launching.manifest(run_dir, 0)
    assert written["nvtx_version"] == ("0.2.11" if fits else "0.2.12")
    assert ranges(nsys, run_dir / "ranks/00000/rank.nsys-rep", "step %") == (40 if fits else 0)
    source = _nsys_source(run_dir)
    if fits:
        assert source["state"] == "OK"
    else:
        assert source["state"] in ("EMPTY", "PARTIAL", "LOST")
        assert "nvtx" in source["reason"]


def _nsys_source(run_dir: Path) -> dict[str, object]:
    """What collect says of the only rank's report."""
    (rank,) = pipeline.collect(run_dir).record["quality"]["ranks"]
    source: dict[str, object] = rank["sources"]["nsys"]
    return source


# names


def test_a_name_that_nsys_would_substitute_stays_as_it_is(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "100%p %h %q{HPCPROF_UNSET} %q{HOME}%"
    marks = tmp_path / "marks"
    rank = Rank(nsys, scratch, run_dir, application(marks, 0.5))

    assert rank.end() == ENDS_OF_APPLICATION
    written = launching.manifest(run_dir)
    report = run_dir / "ranks/00003/rank.nsys-rep"
    assert written["state_reason"] == f"nsys report, {report.stat().st_size} bytes"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["marks", run_dir.name])


def test_of_two_starts_of_one_rank_one_is_recorded_and_both_run(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    """nsys would leave the report of one in its TMPDIR, or overwrite the other's."""
    marks = [tmp_path / "marks0", tmp_path / "marks1"]
    ranks = [Rank(nsys, scratch, tmp_path / "run", application(file, 1.0)) for file in marks]
    ends = [rank.launcher.communicate(timeout=90) for rank in ranks]

    assert [rank.launcher.returncode for rank in ranks] == [7, 7]
    assert ranks[0].nsys_pids() == {}
    assert [file.read_text().count("start") for file in marks] == [1, 1]
    refused = [err for _, err in ends if "another start" in err]
    assert len(refused) == 1
    assert "The training runs without being recorded." in refused[0]
    written = launching.manifest(tmp_path / "run")
    assert written["state"] == "OK"
    assert written["pid"] in [int(file.read_text().split()[1]) for file in marks]
    assert _reports_left(scratch) == []


def test_a_report_of_somebody_else_is_neither_overwritten_nor_taken_for_ours(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    report = ArtifactPaths(tmp_path / "run").nsys_report(3)
    report.parent.mkdir(parents=True)
    report.write_text("a report of last week")
    rank = Rank(nsys, scratch, tmp_path / "run", application(tmp_path / "marks", 0.5))

    assert rank.end()[:2] == ENDS_OF_APPLICATION[:2]
    assert report.read_text() == "a report of last week"
    manifest = ArtifactPaths(tmp_path / "run").manifest(3)
    assert not manifest.exists() or launching.manifest(tmp_path / "run")["state"] != "OK"
    assert _reports_left(scratch) == []


def _reports_left(scratch: Path) -> list[str]:
    """Recordings that a rank forgot in nsys's TMPDIR."""
    left = [*scratch.glob("hpcprof-*/*.nsys-rep"), *scratch.glob("hpcprof-*/*.qdstrm")]
    return sorted(path.name for path in left)


# folders that cannot be used


def _bound_by_modes() -> list[str]:
    """A command before which the modes of files count for root too."""
    if os.getuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root without setpriv writes whatever the mode of a folder")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search", "--"]


def test_a_run_folder_that_becomes_unwritable_costs_no_report_without_a_word(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    folder = tmp_path / "run/ranks/00003"
    prefix = _bound_by_modes()
    rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 1.5), prefix=prefix)
    wait_for_line(marks, "start")
    folder.chmod(0o500)
    try:
        code, out, err = rank.end()
    finally:
        folder.chmod(0o700)

    assert (code, out) == ENDS_OF_APPLICATION[:2]
    assert marks.read_text().splitlines()[1:] == ["end"]
    # the manifest of the start says nothing of the end, so that collect takes the rank for killed
    assert "the manifest could not be completed" in err
    assert not (folder / "rank.nsys-rep").exists()
    (left,) = set(re.findall(r"/\S+\.(?:nsys-rep|qdstrm)", err))
    assert ranges(nsys, Path(left)) > 30


def test_a_missing_importer_leaves_a_recording_that_can_be_imported(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    """As where the command line was installed alone, or lies apart from its importer (Debian)."""
    target = nsys.resolve().parent
    (importer,) = target.parent.glob("host-linux-*/QdstrmImporter")
    alone = tmp_path / "nsys" / target.name
    alone.parent.mkdir()
    # links cost no space; nsys looks for its importer beside the file that is executed
    linked = subprocess.run(["cp", "-al", target, alone], capture_output=True)
    if linked.returncode:
        subprocess.run(["cp", "-a", target, alone], check=True)
    rank = Rank(alone / "nsys", scratch, tmp_path / "run", application(tmp_path / "marks", 1.0))

    assert rank.end() == ENDS_OF_APPLICATION
    stream = tmp_path / "run/ranks/00003/rank.qdstrm"
    written = launching.manifest(tmp_path / "run")
    expected = f"raw recording, {stream.stat().st_size} bytes, not imported yet"
    assert (written["state"], written["state_reason"]) == ("OK", expected)
    report = tmp_path / "imported.nsys-rep"
    convert = [importer, "-i", stream, "-o", report]
    subprocess.run(convert, check=True, capture_output=True, timeout=120)
    assert ranges(nsys, report) > 20


def test_a_tmpdir_that_does_not_exist_costs_nothing(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    """nsys itself would never start the training."""
    marks = tmp_path / "marks"
    missing = scratch / "missing"
    environ = {"TMPDIR": str(missing)}
    rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 0.5), environ=environ)

    assert rank.end() == ENDS_OF_APPLICATION
    assert marks.read_text().count("start") == 1
    written = launching.manifest(tmp_path / "run")
    assert written["state"] == "OK"
    warned = [text for text in written["warnings"] if str(missing) in text]
    assert len(warned) == 1 and "No such file" in warned[0]
    assert not missing.exists()


@as_root
def test_a_tmpdir_without_execution_costs_the_recording_only(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "none", scratch], check=True)
    try:
        marks = tmp_path / "marks"
        rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 0.5))
        code, out, err = rank.end()
    finally:
        subprocess.run(["umount", scratch], check=True)

    assert (code, out) == ENDS_OF_APPLICATION[:2]
    assert marks.read_text().count("start") == 1
    written = launching.manifest(tmp_path / "run")
    assert (written["state"], written["profiler"]["fell_back"]) == ("NOT_PROFILED", True)
    assert "is mounted noexec" in written["state_reason"]
    assert written["state_reason"] in err


# a node on which nsys hangs


class Node:
    """Processes with a /dev/shm of their own: the table of nsys's sessions lies there.

    Whatever is broken in it is broken for nobody else, and gone with ``holder``.
    """

    _BEGIN = "mount -t tmpfs none /dev/shm && echo ready && exec sleep 600"

    def __init__(self) -> None:
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", self._BEGIN],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "ready\n"

    def inside(self, *command: str | Path) -> list[str]:
        """The command as it is run on the node."""
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--", *map(str, command)]


class ForeignStart:
    """A start of nsys by somebody else; all its processes are found by a mark."""

    def __init__(self, node: Node, nsys: Path, tmpdir: Path, ran: Path) -> None:
        tmpdir.mkdir(mode=0o700, exist_ok=True)
        self._mark = f"HPCPROF_TEST_FOREIGN={ran}".encode()
        options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-o", f"{ran}.report"]
        self.process = subprocess.Popen(
            node.inside(nsys, "profile", *options, "touch", ran),
            env={**os.environ, "TMPDIR": str(tmpdir), "HPCPROF_TEST_FOREIGN": str(ran)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop_while_it_holds_the_lock(self) -> bool:
        """Stop the process that holds nsys's lock; False when the moment was missed."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            for pid in _lock_holders():
                if not self._is_ours(pid):
                    continue
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.05)
                if pid in _lock_holders():
                    return True
                os.kill(pid, signal.SIGCONT)
        return False

    def end(self) -> None:
        """End all of it, as the end of its job would."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            if self._is_ours(int(name)):
                os.kill(int(name), signal.SIGKILL)
        self.process.wait(20)

    def _is_ours(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _lock_holders() -> list[int]:
    """Who holds a lock of fcntl on a whole file to write it; proc(5), /proc/locks."""
    lines = Path("/proc/locks").read_text().splitlines()
    fields = [line.split() for line in lines if " POSIX " in line and "->" not in line]
    return [int(line[4]) for line in fields if line[3] == "WRITE" and line[7:] == ["EOF"]]


@contextmanager
def _node_with_a_hung_start(nsys: Path, tmpdir: Path, folder: Path) -> Iterator[Node]:
    node = Node()
    try:
        for number in range(10):
            foreign = ForeignStart(node, nsys, tmpdir, folder / f"foreign{number}")
            try:
                if foreign.stop_while_it_holds_the_lock():
                    yield node
                    return
            finally:
                foreign.end()
        pytest.fail("no start of nsys could be stopped while it held the lock")
    finally:
        node.holder.kill()
        node.holder.communicate()


def _hangs(node: Node, nsys: Path, tmpdir: Path, ran: Path, seconds: float) -> bool:
    """Whether a plain ``nsys profile`` does not come to its application in so long."""
    second = ForeignStart(node, nsys, tmpdir, ran)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not ran.exists():
            time.sleep(0.05)
        return not ran.exists()
    finally:
        second.end()


@as_root
@pytest.mark.skipif(shutil.which("nsenter") is None, reason="no nsenter")
@pytest.mark.parametrize("whose", ["own", "another user's"])
def test_on_a_node_where_a_start_of_nsys_hangs_the_training_runs_without_it(
    nsys: Path, scratch: Path, tmp_path: Path, whose: str
) -> None:
    """A process of nsys that was stopped while it held nsys's lock blocks every later start."""
    ours = scratch / f"hpcprof-{os.getuid()}"
    tmpdir = ours if whose == "own" else scratch / "other"
    marks = tmp_path / "marks"
    patch = "from hpcprof.launch import nsys_start; nsys_start.WATCHDOG_SECONDS = 4"
    command = ["/bin/sh", "-c", ONE_LINE.format(marks=marks)]
    with _node_with_a_hung_start(nsys, tmpdir, tmp_path) as node:
        assert _hangs(node, nsys, ours, tmp_path / "second", 6.0)
        rank = Rank(nsys, scratch, tmp_path / "run", command, patch, prefix=node.inside())
        code, _, err = rank.end()

    assert (code, launching.starts(marks)) == (7, 1)
    assert "nsys could not be started. The training runs without nsys." in err
    written = launching.manifest(tmp_path / "run")
    assert (written["state"], written["profiler"]["fell_back"]) == ("NOT_PROFILED", True)
    for attempt in (1, 2):
        why = f"nsys start {attempt}: nsys did not start the application in 4 s"
        assert [text for text in written["warnings"] if text.startswith(why)]
