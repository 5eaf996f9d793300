"""A rank's files of tf.profiler beside its other sources: nothing counts twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcprof.artifacts import atomic
from hpcprof.artifacts.manifest import new_manifest
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers import read_rank
from hpcprof.trace import Trace, check_spans
from tests.unit.nvtx_writer import NvtxFile
from tests.unit.span_writer import OPENED_MONOTONIC_NS, OPENED_REALTIME_NS, SpanFile
from tests.unit.xplane_writer import PlaneBuilder, XPlaneFile

pytestmark = pytest.mark.unit

RANK = 3
MS = 1_000_000
BASE = OPENED_MONOTONIC_NS
PROFILE_STARTED = BASE + MS  # with step 1
TENSOR, SHARED = "g/HorovodAllreduce_0", "adam/CollectiveReduceV2"


@pytest.fixture
def paths(tmp_path: Path) -> ArtifactPaths:
    made = ArtifactPaths(tmp_path / "run")
    made.rank_folder(RANK).mkdir(parents=True)
    identity = {"rank": RANK, "local_rank": 1, "world_size": 8, "node": "node2"}
    record = new_manifest({**identity, "job_id": "4711", "slurm_step": "0"}, ["python"])
    moment = {"realtime_ns": OPENED_REALTIME_NS, "monotonic_ns": OPENED_MONOTONIC_NS}
    record.update(started=moment, ended=moment, exit_code=0)
    atomic.write_json(made.manifest(RANK), record)
    return made


def own_records(paths: ArtifactPaths) -> None:
    file = SpanFile(rank=RANK)
    for step in range(4):
        file.step(BASE + step * MS + 100_000, BASE + step * MS + 900_000, step)
    paths.spans(RANK).write_bytes(file.content)


def horovods_ranges(paths: ArtifactPaths, steps: range) -> None:
    file = NvtxFile()
    for step in steps:
        start = BASE + step * MS
        file.allreduce(start + 300_000, start + 500_000, 64)
    paths.nvtx_record(RANK).write_bytes(file.content)


def profile(paths: ArtifactPaths, steps: range = range(1, 3)) -> None:
    """Steps of tf.profiler, each with an operation and two collectives."""
    file = XPlaneFile()
    host = file.plane().sync(0, 0, PROFILE_STARTED)
    for step in steps:
        start = step * MS + BASE - PROFILE_STARTED
        host.step(start + 100_000, start + 900_000, step)
        host.run("tf_Compute", start + 150_000, start + 800_000, step)
        host.add("tf_Compute", start + 200_000, start + 250_000, "m/d/MatMul:MatMul")
        collective(host, start + 300_000, start + 500_000, TENSOR, "HorovodAllreduce", step)
        collective(host, start + 310_000, start + 510_000, SHARED, "CollectiveReduceV2", step)
    file.write(paths.tf_profile(RANK))


def collective(host: PlaneBuilder, start: int, end: int, name: str, kind: str, run: int) -> None:
    stats: dict[str, Any] = {"name": name, "kernel_type": kind, "step_id": run}
    host.add("tf_Compute", start, start + 5, "ExecutorState::ProcessAsync::Start", **stats)
    host.add("done", end, end + 1, "ExecutorState::ProcessAsync::Done", **stats)


def rank(paths: ArtifactPaths, tmp_path: Path) -> Trace:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    trace = read_rank(paths, RANK, work, None)
    check_spans(trace.spans)
    return trace


def collectives(trace: Trace) -> list[tuple[str, int, str]]:
    """Source, step and name of each, in the order of time."""
    found = trace.spans[trace.spans["kind"] == "collective"]
    return [
        (str(row.source), int(row.step), str(row.name).partition(":")[0])
        for row in found[["source", "step", "name"]].itertuples(index=False, name="Row")
    ]


def test_operations_and_collectives_of_the_profile_have_the_steps_of_our_records(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    profile(paths)
    trace = rank(paths, tmp_path)
    state = trace.rank.sources["tfprof"]
    assert (state.state, state.rows, state.first_step, state.last_step) == ("OK", 6, 1, 2)
    ops = trace.spans[trace.spans["kind"] == "op"]
    assert ops[["step", "phase"]].values.tolist() == [[1, "forward"], [2, "forward"]]
    assert collectives(trace) == [
        *(("tfprof", 1, TENSOR), ("tfprof", 1, SHARED)),
        *(("tfprof", 2, TENSOR), ("tfprof", 2, SHARED)),
    ]
    assert (trace.spans["kind"] == "step").sum() == 4


def test_a_tensor_that_horovod_told_itself_is_not_counted_again(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    horovods_ranges(paths, range(4))
    profile(paths)
    assert collectives(rank(paths, tmp_path)) == [
        ("recorder", 0, "HorovodAllreduce"),
        *(("recorder", 1, "HorovodAllreduce"), ("tfprof", 1, SHARED)),
        *(("recorder", 2, "HorovodAllreduce"), ("tfprof", 2, SHARED)),
        ("recorder", 3, "HorovodAllreduce"),
    ]


def test_in_steps_that_only_the_profile_saw_its_tensors_count(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    horovods_ranges(paths, range(2))
    profile(paths)
    found = collectives(rank(paths, tmp_path))
    assert [each for each in found if each[2] != SHARED] == [
        ("recorder", 0, "HorovodAllreduce"),
        ("recorder", 1, "HorovodAllreduce"),
        ("tfprof", 2, TENSOR),
    ]


def test_without_our_records_the_profiles_marks_are_the_steps(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    profile(paths)
    trace = rank(paths, tmp_path)
    assert trace.rank.state == "PARTIAL"
    steps = trace.spans[trace.spans["kind"] == "step"]
    assert steps[["source", "step"]].values.tolist() == [["tfprof", 1], ["tfprof", 2]]
    assert {step for _, step, _ in collectives(trace)} == {1, 2}


def test_a_profile_that_left_no_file_is_lost_and_the_rank_none_the_worse(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    paths.tf_profile(RANK).mkdir()
    info = rank(paths, tmp_path).rank
    assert info.sources["tfprof"].state == "LOST"
    assert (info.state, info.reason) == ("NOT_PROFILED", "nsys: no profiler was asked for")


def test_without_a_profile_it_is_no_source_of_the_rank(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    assert set(rank(paths, tmp_path).rank.sources) == {"spans", "nsys"}
