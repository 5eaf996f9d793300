"""A real recording by nsys of a program that knows when its ranges began and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcprof.artifacts import atomic
from hpcprof.artifacts.manifest import new_manifest
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers import NsysTools, find_tools, read_rank
from hpcprof.trace import Trace, TraceStore, check_spans
from tests.setup import paths as tools_of_tests

pytestmark = pytest.mark.e2e

STEPS = 9
# two nsys that start at the same moment on one node: one may fail before the program runs
STARTS = 3
RANK = 0
SECRET = "tok-5ecret-that-must-not-be-kept"
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Recording:
    paths: ArtifactPaths
    truth: dict[str, Any]
    tools: NsysTools


def tools() -> NsysTools:
    nsys = tools_of_tests.nsys()
    if nsys is None or tools_of_tests.train_python() is None:
        pytest.skip("nsys or the training environment is not set up (make test-tools)")
    found = find_tools(str(nsys))
    assert found is not None and found.importer is not None
    return found


def command(nsys: Path, paths: ArtifactPaths, *program_arguments: object) -> list[str]:
    options = ["--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none"]
    profile = [str(nsys), "profile", *options, f"--output={paths.nsys_stem(RANK)}"]
    program = [str(tools_of_tests.train_python()), "-m", "tests.e2e.nsys_program"]
    return [*profile, *program, *map(str, program_arguments)]


def environment(scratch: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "TMPDIR": str(scratch),
        "HPCPROF_TEST_SECRET": SECRET,
    }


def write_manifest(paths: ArtifactPaths, **fields: Any) -> None:
    identity = {"rank": RANK, "local_rank": 0, "world_size": 1, "node": "node1"}
    record = new_manifest({**identity, "job_id": "", "slurm_step": ""}, ["python", "train.py"])
    now = {"realtime_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}
    record.update(started=now, ended=now, exit_code=0, profiler={"name": "nsys"})
    record.update(fields)
    atomic.write_json(paths.manifest(RANK), record)


def record(folder: Path, *program_options: str, nsys: Path | None = None) -> Recording:
    paths = ArtifactPaths(folder / "run")
    paths.rank_folder(RANK).mkdir(parents=True)
    scratch = folder / "scratch"
    scratch.mkdir()
    truth = folder / "truth.json"
    found = tools()
    arguments = (STEPS, paths.spans(RANK), truth, *program_options)
    for _ in range(STARTS):
        subprocess.run(
            command(nsys or found.nsys, paths, *arguments),
            env=environment(scratch),
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=300,
        )
        if truth.exists():
            break
    write_manifest(paths)
    return Recording(paths, json.loads(truth.read_text()), found)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("nsys"))


def read(recording: Recording, workdir: Path, paths: ArtifactPaths | None = None) -> Trace:
    trace = read_rank(paths or recording.paths, RANK, workdir, recording.tools)
    check_spans(trace.spans)
    assert list(workdir.iterdir()) == [], "an export was left behind"
    return trace


def copy_of(recording: Recording, folder: Path) -> ArtifactPaths:
    shutil.copytree(recording.paths.root, folder)
    return ArtifactPaths(folder)


def rows(trace: Trace, kind: str, source: str) -> pd.DataFrame:
    return trace.spans[(trace.spans["kind"] == kind) & (trace.spans["source"] == source)]


def test_every_source_arrives_complete(recording: Recording, tmp_path: Path) -> None:
    trace = read(recording, tmp_path)
    assert (trace.rank.state, trace.rank.reason) == ("OK", "")
    nsys = trace.rank.sources["nsys"]
    assert (nsys.state, nsys.first_step, nsys.last_step) == ("OK", 0, STEPS - 1)
    assert nsys.clock_bound_ns is not None and nsys.clock_bound_ns < 1_000_000
    assert trace.rank.sources["spans"].rows == len(trace.spans[trace.spans["source"] == "hpcprof"])


def test_collectives_lie_where_the_program_says_within_the_bound(
    recording: Recording, tmp_path: Path
) -> None:
    trace = read(recording, tmp_path)
    found = rows(trace, "collective", "nsys")
    truth = recording.truth["allreduces"]
    assert len(found) == len(truth) == 2 * STEPS
    assert set(found["op"]) == {"allreduce"} and set(found["bytes"]) == {4096}
    assert set(found["activity"]) == {"collective"} and set(found["replica"]) == {0}
    assert found["step"].tolist() == [row[0] for row in truth]
    bound = trace.rank.sources["nsys"].clock_bound_ns
    assert bound is not None
    for start, end, (_, before, opened, closing, after) in zip(
        found["start_ns"], found["end_ns"], truth, strict=True
    ):
        assert before - bound <= start <= opened + bound
        assert closing - bound <= end <= after + bound


def test_steps_come_once_and_from_our_own_records(recording: Recording, tmp_path: Path) -> None:
    trace = read(recording, tmp_path)
    steps = rows(trace, "step", "hpcprof")
    assert steps["step"].tolist() == list(range(STEPS))
    assert rows(trace, "step", "nsys").empty and rows(trace, "phase", "nsys").empty
    for start, (_, before, opened, *_) in zip(
        steps["start_ns"], recording.truth["steps"], strict=True
    ):
        assert before <= start <= opened


def test_file_reads_are_io_of_the_step_that_made_them(recording: Recording, tmp_path: Path) -> None:
    reads = rows(read(recording, tmp_path), "io", "nsys")
    in_step = reads[reads["name"].isin(["read", "open64", "open"])].dropna(subset=["step"])
    assert set(in_step["step"]) == set(range(STEPS))


def test_without_our_records_the_ranges_in_the_report_take_their_place(
    recording: Recording, tmp_path: Path
) -> None:
    paths = copy_of(recording, tmp_path / "run")
    paths.spans(RANK).unlink()
    (tmp_path / "work").mkdir()
    trace = read(recording, tmp_path / "work", paths)
    assert trace.rank.state == "PARTIAL"
    assert trace.rank.sources["spans"].state == "LOST"
    steps = rows(trace, "step", "nsys")
    assert steps["step"].tolist() == list(range(STEPS))
    phases = rows(trace, "phase", "nsys")
    inputs = phases[phases["phase"] == "input"]
    assert inputs["step"].tolist()[:STEPS] == list(range(STEPS))
    assert phases[phases["phase"] == "allreduce"]["op"].tolist() == ["allreduce"] * STEPS
    assert rows(trace, "collective", "nsys")["step"].tolist() == [
        row[0] for row in recording.truth["allreduces"]
    ]


def test_without_beacons_the_start_time_of_the_report_is_used_and_said(tmp_path: Path) -> None:
    recording = record(tmp_path, "quiet")
    (tmp_path / "work").mkdir()
    trace = read(recording, tmp_path / "work")
    nsys = trace.rank.sources["nsys"]
    assert (trace.rank.state, nsys.state, nsys.clock_bound_ns) == ("PARTIAL", "PARTIAL", 1_000_000)
    assert nsys.reason.startswith("the report holds no step range of hpcprof")
    assert any("the report holds no beacon" in text for text in nsys.warnings)
    found = rows(trace, "collective", "nsys")
    for start, (_, before, opened, *_) in zip(
        found["start_ns"], recording.truth["allreduces"], strict=True
    ):
        assert before - 1_000_000 <= start <= opened + 1_000_000


def test_no_variable_of_the_environment_reaches_the_store(
    recording: Recording, tmp_path: Path
) -> None:
    report = recording.paths.nsys_report(RANK).read_bytes()
    assert SECRET.encode() in report, "nsys no longer records the environment: drop this test"
    store = TraceStore(tmp_path / "store")
    (tmp_path / "work").mkdir()
    store.write(read(recording, tmp_path / "work"))
    kept = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(kept) == 3
    frame = store.read_spans(RANK)
    assert not any(SECRET in str(text) for text in frame["name"].cat.categories)
    assert all(SECRET.encode() not in path.read_bytes() for path in kept)


def test_the_rank_folder_is_left_as_it_was(recording: Recording, tmp_path: Path) -> None:
    folder = recording.paths.rank_folder(RANK)
    before = sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir())
    read(recording, tmp_path)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir()) == before


def test_a_raw_stream_is_imported(recording: Recording, tmp_path: Path) -> None:
    target = recording.tools.nsys.resolve().parent
    # nsys beside no importer: what a target-only installation leaves
    shutil.copytree(target, tmp_path / target.name, symlinks=True, copy_function=_link_or_copy)
    streamed = record(tmp_path, nsys=tmp_path / target.name / "nsys")
    assert streamed.paths.nsys_stream(RANK).exists()
    assert not streamed.paths.nsys_report(RANK).exists()
    (tmp_path / "work").mkdir()
    trace = read(streamed, tmp_path / "work")
    assert trace.rank.state == "OK"
    assert len(rows(trace, "collective", "nsys")) == 2 * STEPS


def test_a_recording_that_was_killed_is_lost_with_its_reason(
    recording: Recording, tmp_path: Path
) -> None:
    paths = ArtifactPaths(tmp_path / "run")
    paths.rank_folder(RANK).mkdir(parents=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    endless = command(
        recording.tools.nsys, paths, 100_000, paths.spans(RANK), tmp_path / "truth.json"
    )
    process = _started(endless, environment(scratch), paths.spans(RANK))
    ours = _processes_with(f"TMPDIR={scratch}")
    assert process.pid in ours and len(ours) > 1
    for pid in ours:
        os.kill(pid, signal.SIGKILL)
    process.wait(timeout=30)
    stream = next(scratch.rglob("*.qdstrm"), None)
    if stream is None:
        pytest.skip("this nsys left no stream to look at")
    shutil.move(stream, paths.nsys_stream(RANK))
    write_manifest(paths, ended=None, exit_code=None)
    (tmp_path / "work").mkdir()
    trace = read(recording, tmp_path / "work", paths)
    assert trace.rank.state == "PARTIAL"
    assert trace.rank.sources["nsys"].state == "LOST"
    assert "killed while recording (time limit or SIGKILL)" in trace.rank.sources["nsys"].reason
    assert trace.rank.sources["spans"].last_step is not None


def _started(arguments: list[str], environ: dict[str, str], spans: Path) -> subprocess.Popen:
    """nsys with its program, once the program has recorded something."""
    for _ in range(STARTS):
        process = subprocess.Popen(
            arguments, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None:
            if spans.exists() and spans.stat().st_size > 4_000:
                return process
            time.sleep(0.1)
    pytest.fail(f"nsys ended {STARTS} times before its program recorded anything")


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _processes_with(variable: str) -> list[int]:
    """Processes that were started with this environment variable: nsys, its agent, the program."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if variable.encode() in environ:
                found.append(int(entry.name))
    return found
