"""A window of steps, and recordings ended early, with the real nsys (host mode: no CUDA here)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcprof.artifacts import rank_state, span_format
from hpcprof.artifacts.paths import ArtifactPaths
from tests.e2e.launched_rank import AGENT, ENDS_OF_APPLICATION, JOB, Rank, wait_for_line
from tests.unit import launching

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("stepping_program.py")
LAUNCH_COMMAND = "^[^ ]*nsys launch"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="mounting a small tmpfs needs root")


class Training(Rank):
    """The stepping program as rank 3, or another, of a run in ``tmp_path``."""

    def __init__(
        self,
        tools: tuple[Path, Path],
        tmpdir: Path,
        tmp_path: Path,
        *program: object,
        rank: int = 3,
        patch: str = "pass",
        **settings: Any,
    ) -> None:
        nsys, python = tools
        self.rank, self.marks = rank, tmp_path / f"marks{rank}"
        steps, seconds, *actions = map(str, program)
        command = [str(python), str(PROGRAM), steps, seconds, str(self.marks), *actions]
        super().__init__(
            nsys,
            tmpdir,
            tmp_path / "run",
            command,
            patch,
            settings=settings,
            environ={"SLURM_PROCID": str(rank)},
        )
        self.paths = ArtifactPaths(self.run_dir)

    @property
    def manifest(self) -> dict[str, Any]:
        return launching.manifest(self.run_dir, self.rank)

    @property
    def report(self) -> Path:
        return self.paths.nsys_report(self.rank)

    def state_folder(self, scratch: Path) -> Path:
        """Where the training and the launcher leave messages."""
        pattern = f"hpcprof-*/{JOB}.1.{self.rank}.*"
        launching.wait_until(lambda: bool(list(scratch.glob(pattern))))
        (found,) = scratch.glob(pattern)
        return found

    def wait_for_manifest(self, field: str) -> None:
        """Until a field of the profiler's section, or of the manifest, is filled in."""

        def is_there() -> bool:
            with contextlib.suppress(FileNotFoundError):
                written = self.manifest
                window = written["profiler"].get("window") or {}
                return bool(written.get(field) or window.get(field))
            return False

        launching.wait_until(is_there, seconds=60)


@pytest.fixture
def tools(nsys: Path, horovod_python: Path) -> tuple[Path, Path]:
    return nsys, horovod_python


def steps_seen(nsys: Path, report: Path) -> set[int]:
    """Numbers of the whole steps in a report."""
    base_file = f"{report}.sqlite"
    export = [str(nsys), "export", "-t", "sqlite", "-o", base_file, str(report)]
    subprocess.run(export, check=True, capture_output=True, timeout=120)
    with contextlib.closing(sqlite3.connect(base_file)) as base:
        query = "select coalesce(text, value) from NVTX_EVENTS left join StringIds on textId = id "
        query += "where eventType = 59 and end is not null"
        names = [name for (name,) in base.execute(query)]
    prefix = span_format.NVTX_STEP_PREFIX
    return {int(name[len(prefix) :]) for name in names if re.match(rf"{prefix}\d+$", name)}


def own_steps(path: Path) -> Iterator[tuple[int, int, int]]:
    """Step, start and end of each step in a span file."""
    content = path.read_bytes()
    size = span_format.BLOCK_BYTES
    position = size
    while position + size <= len(content):
        start, end, _, step, _, flags, value = span_format.RECORD.unpack_from(content, position)
        position += size
        if flags == span_format.KIND_NAME:
            position += span_format.text_block_count(value) * size
        elif flags == span_format.KIND_STEP:
            yield step, start, end


def undisturbed(training: Training, steps: range) -> set[int]:
    """Those of ``steps`` in which nsys neither started nor stopped nor wrote."""
    busy = training.manifest["profiler_busy"]
    return {
        step
        for step, start, end in own_steps(training.paths.spans(training.rank))
        if step in steps and not any(b < end and start < e for b, e, _ in busy)
    }


def test_the_window_holds_its_steps_and_no_other(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    training = Training(tools, scratch, tmp_path, 80, 0.05, f"wait:{go}@75", profile_steps="20-49")
    launching.wait_until(training.report.exists, seconds=60)
    launching.wait_until(lambda: len(training.manifest["profiler_busy"]) == 2)
    go.touch()

    assert training.end() == ENDS_OF_APPLICATION
    written = training.manifest
    assert (written["state"], written["exit_code"]) == ("OK", 7), written
    assert written["warnings"] == []
    starts, stops = written["profiler_busy"]
    window = written["profiler"]["window"]
    assert (window["steps"], window["mode"]) == ("20-49", "host")
    assert starts[0] == window["opened_ns"] < window["closed_ns"] == stops[0]
    assert stops[1] < written["ended"]["monotonic_ns"]  # the training went on meanwhile
    expected = undisturbed(training, range(20, 50))
    assert len(expected) >= 20
    seen = steps_seen(tools[0], training.report)
    assert expected <= seen
    disturbed = set(range(80)) - undisturbed(training, range(80))
    assert seen - expected <= disturbed
    assert written["nvtx_version"]


def test_the_ranks_of_a_node_start_their_recordings_at_the_same_step(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path
) -> None:
    """As after a collective: no rank waits for another, and nsys has one table for all of them."""
    go, end = tmp_path / "go", tmp_path / "end"
    actions = (f"wait:{go}@2", f"wait:{end}@90")
    ranks = [
        Training(tools, scratch, tmp_path, 91, 0.05, *actions, rank=rank, profile_steps="2-80")
        for rank in range(4)
    ]
    for training in ranks:
        spans = training.paths.spans(training.rank)
        launching.wait_until(spans.exists, seconds=60)
        launching.wait_until(lambda path=spans: len(list(own_steps(path))) == 2)
    go.touch()
    for training in ranks:
        launching.wait_until(lambda t=training: len(t.manifest["profiler_busy"]) == 2, seconds=60)
    end.touch()
    for training in ranks:
        assert training.launcher.wait(60) == 7
    for training in ranks:
        assert training.end() == ENDS_OF_APPLICATION
        written = training.manifest
        assert (written["state"], written["warnings"]) == ("OK", []), written
        (begin, until, _), _ = written["profiler_busy"]
        print(f"rank {training.rank}: nsys start took {(until - begin) / 1e9:.2f} s")
    assert undisturbed(ranks[3], range(2, 81)) <= steps_seen(tools[0], ranks[3].report)


def test_a_window_that_is_never_reached_is_empty(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path
) -> None:
    training = Training(tools, scratch, tmp_path, 10, 0.05, profile_steps="20-49")

    assert training.end() == ENDS_OF_APPLICATION
    assert (training.manifest["state"], training.manifest["state_reason"]) == (
        "EMPTY",
        "the training ended before step 20, the first to record",
    )
    assert not training.report.exists()


@pytest.mark.parametrize(
    ("action", "returned", "code"),
    [("exit:0@30", 0, 0), ("kill:15@30", -15, 143), ("kill:9@30", -9, 137)],
)
def test_a_training_that_ends_in_its_window_keeps_its_fate_and_its_report(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path, action: str, returned: int, code: int
) -> None:
    training = Training(tools, scratch, tmp_path, 60, 0.05, action, profile_steps="5-49")

    assert training.end()[0] == returned
    assert training.manifest["exit_code"] == code
    assert training.manifest["state"] == "OK", training.manifest
    expected = undisturbed(training, range(5, 29))
    assert len(expected) >= 5
    assert expected <= steps_seen(tools[0], training.report)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    ("victim", "signum"),
    [(AGENT, signal.SIGKILL), (AGENT, signal.SIGTERM), (LAUNCH_COMMAND, signal.SIGKILL)],
)
def test_the_training_outlives_an_nsys_with_a_window(
    tools: tuple[Path, Path],
    scratch: Path,
    tmp_path: Path,
    victim: str,
    signum: int,
    is_open: bool,
) -> None:
    steps = "10-50" if is_open else "40-50"
    training = Training(
        tools, scratch, tmp_path, 60, 0.05, f"wait:{tmp_path}/go@30", profile_steps=steps
    )
    if is_open:
        training.wait_for_manifest("profiler_busy")
    else:
        wait_for_line(training.marks, "start")
    os.kill(training.pid(victim), signum)
    (tmp_path / "go").touch()

    assert training.end() == ENDS_OF_APPLICATION
    written = training.manifest
    assert written["exit_code"] == 7
    assert training.marks.read_text().splitlines()[1:] == ["end"]
    # without its command line nsys still records and stops; without its agent it cannot
    assert written["state"] == ("OK" if victim == LAUNCH_COMMAND else "LOST"), written
    assert written["warnings"]


def test_term_reaches_a_training_in_its_window_once(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path
) -> None:
    training = Training(tools, scratch, tmp_path, 60, 0.05, profile_steps="10-50")
    training.wait_for_manifest("profiler_busy")
    training.launcher.send_signal(signal.SIGTERM)

    assert training.end()[0] == 7
    assert training.marks.read_text().splitlines()[1:] == ["signal 15", "end"]
    written = training.manifest
    assert written["state"] == "PARTIAL"
    assert written["state_reason"].startswith("stopped by signal 15; nsys report, ")
    assert written["warnings"] == []
    assert steps_seen(tools[0], training.report)


def test_stop_completes_the_report_while_the_training_goes_on(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    training = Training(tools, scratch, tmp_path, 30, 0.05, f"wait:{go}@25")
    state = training.state_folder(scratch)
    launching.wait_until(lambda: training.paths.spans(3).exists(), seconds=40)
    launching.wait_until(lambda: len(list(own_steps(training.paths.spans(3)))) == 25)
    rank_state.leave(state, rank_state.STOP, "before the time limit")
    launching.wait_until(lambda: rank_state.find(state, rank_state.STOPPED) is not None, seconds=60)
    answer = rank_state.find(state, rank_state.STOPPED)
    assert answer == f"ok: the recording is written, {training.report.stat().st_size} bytes"
    assert training.launcher.poll() is None
    assert set(range(25)) == steps_seen(tools[0], training.report)
    go.touch()

    assert training.end() == ENDS_OF_APPLICATION
    written = training.manifest
    assert written["state"] == "PARTIAL"
    assert written["state_reason"].startswith("stopped before the time limit; nsys report, ")
    assert written["warnings"] == []
    assert len(written["profiler_busy"]) == 1


def test_flush_ends_the_recordings_of_two_ranks(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    ranks = [
        Training(tools, scratch, tmp_path, 30, 0.05, f"wait:{go}@20", rank=rank) for rank in (2, 3)
    ]
    for training in ranks:
        spans = training.paths.spans(training.rank)
        launching.wait_until(spans.exists, seconds=40)
        launching.wait_until(lambda path=spans: len(list(own_steps(path))) == 20)
    argv = [sys.executable, "-m", "hpcprof", "flush", "--run-dir", str(tmp_path / "run")]
    environ = launching.environ(tmp_path, SLURM_JOB_ID=JOB)
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0
    lines = sorted(done.stderr.splitlines())
    for training, line in zip(ranks, lines, strict=True):
        begin = f"hpcprof flush: rank {training.rank}: ok: the recording is written, "
        assert line == f"{begin}{training.report.stat().st_size} bytes"
        assert training.launcher.poll() is None
    go.touch()
    for training in ranks:
        assert training.launcher.wait(90) == 7
    for training in ranks:
        assert training.end()[0] == 7
        assert training.manifest["state"] == "PARTIAL"
        assert set(range(20)) <= steps_seen(tools[0], training.report)


@as_root
def test_a_scratch_that_fills_up_ends_the_recording_in_time(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path
) -> None:
    disk = scratch / "d"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "none", disk], check=True)
    try:
        go = tmp_path / "go"
        training = Training(
            tools,
            scratch,
            tmp_path,
            30,
            0.05,
            f"wait:{go}@25",
            scratch=str(disk),
            patch="from hpcprof.launch import disk_guard as d; d.INTERVAL_SECONDS = 0.5",
        )
        launching.wait_until(lambda: training.paths.spans(3).exists(), seconds=40)
        launching.wait_until(lambda: len(list(own_steps(training.paths.spans(3)))) == 25)
        with open(disk / "of-the-training", "wb") as stream:
            stream.truncate(0)
            for _ in range(200):
                stream.write(bytes(2**20))
        training.wait_for_manifest("profiler_busy")
        go.touch()

        assert training.end() == ENDS_OF_APPLICATION
        written = training.manifest
        assert written["state"] == "PARTIAL", written
        assert written["state_reason"].startswith("stopped: disk nearly full; nsys report, ")
        assert any(str(disk) in warning for warning in written["warnings"])
        assert set(range(25)) <= steps_seen(tools[0], training.report)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(("action", "has_stacks"), [("sleep:8@20", True), ("hold:8@20", False)])
def test_a_hang_ends_the_recording_and_not_the_training(
    tools: tuple[Path, Path], scratch: Path, tmp_path: Path, action: str, has_stacks: bool
) -> None:
    patch = "from hpcprof.launch import hang_watch as h; h.LOOK_SECONDS = 0.5; "
    patch += "h.GRACE_SECONDS = 2.0"
    training = Training(tools, scratch, tmp_path, 30, 0.05, action, hang_after_s=2, patch=patch)
    training.wait_for_manifest("profiler_busy")

    assert training.end()[:2] == ENDS_OF_APPLICATION[:2]
    written = training.manifest
    hang = written["hangs"][0]
    assert hang["seconds"] >= 2
    assert (hang["step"] == 19) is has_stacks
    assert ("threads" in hang) is not has_stacks
    assert written["state_reason"].startswith("stopped: the training hung; nsys report, ")
    assert set(range(20)) <= steps_seen(tools[0], training.report)
