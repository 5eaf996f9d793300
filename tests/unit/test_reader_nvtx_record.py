"""nvtx.bin of our own recorder: what becomes of its ranges, damage, and its place in a rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcprof.artifacts import atomic, nvtx_format, span_format
from hpcprof.artifacts.manifest import new_manifest
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.training_record import new_training_record
from hpcprof.errors import InputError
from hpcprof.readers import read_rank
from hpcprof.readers.nsys_sqlite import read_export
from hpcprof.readers.nvtx_record import NvtxRecord, read_nvtx_record
from hpcprof.trace import Trace, check_spans
from tests.unit.nsys_export import Export
from tests.unit.nvtx_writer import NvtxFile
from tests.unit.span_writer import OPENED_MONOTONIC_NS, OPENED_REALTIME_NS, SpanFile

pytestmark = pytest.mark.unit

RANK = 3
MS = 1_000_000
BASE = OPENED_MONOTONIC_NS
FORWARD = "m/d/MatMul:MatMul"
BACKWARD = "gradient_tape/m/d/MatMul:MatMul"
UPDATE = "adam/Sqrt:Sqrt"
NEXT = "IteratorGetNext:IteratorGetNext"


def read(file: NvtxFile, tmp_path: Path, cut: int = 0) -> NvtxRecord:
    path = tmp_path / "nvtx.bin"
    path.write_bytes(file.content[: len(file.content) - cut])
    found = read_nvtx_record(path, RANK, None)
    check_spans(found.spans)
    check_spans(found.own)
    return found


def rows(spans: Any, *columns: str) -> list[tuple[Any, ...]]:
    """The columns as tuples, None for null."""
    plain = spans[list(columns)].astype(object)
    return [tuple(row) for row in plain.where(plain.notna(), None).values.tolist()]


def test_a_tensor_of_horovod_is_a_collective_with_its_bytes(tmp_path: Path) -> None:
    file = NvtxFile().allreduce(BASE + 5, BASE + 905, 4096).allreduce(BASE + 10, BASE + 950, 0)
    file.add(BASE + 20, BASE + 30, "HorovodBroadcast", "HorovodOps", nvtx_format.START_END, 64)
    columns = ("kind", "activity", "name", "op", "bytes", "replica", "phase", "source")
    rest = (0, None, "recorder")
    assert rows(read(file, tmp_path).spans, *columns) == [
        ("collective", "collective", "HorovodAllreduce", "allreduce", 4096, *rest),
        ("collective", "collective", "HorovodAllreduce", "allreduce", None, *rest),
        ("collective", "collective", "HorovodBroadcast", "broadcast", 64, *rest),
    ]


def test_an_operation_has_its_phase_and_the_thread_that_ran_it(tmp_path: Path) -> None:
    file = NvtxFile().op(BASE + 1, BASE + 2, NEXT, 70).op(BASE + 3, BASE + 9, FORWARD, 71)
    file.op(BASE + 10, BASE + 19, BACKWARD, 72).op(BASE + 20, BASE + 21, UPDATE, 72)
    columns = ("start_ns", "end_ns", "kind", "name", "phase", "activity", "replica", "lane")
    assert rows(read(file, tmp_path).spans, *columns) == [
        (BASE + 1, BASE + 2, "op", NEXT, "input", "input", 0, "thread 70"),
        (BASE + 3, BASE + 9, "op", FORWARD, "forward", "compute", 0, "thread 71"),
        (BASE + 10, BASE + 19, "op", BACKWARD, "backward", "compute", 0, "thread 72"),
        (BASE + 20, BASE + 21, "op", UPDATE, "optimizer", "compute", 0, "thread 72"),
    ]


def test_of_operations_within_each_other_only_the_innermost_count(tmp_path: Path) -> None:
    file = NvtxFile().op(BASE + 10, BASE + 20, FORWARD).op(BASE + 20, BASE + 30, BACKWARD)
    file.op(BASE + 5, BASE + 40, "PartitionedCall:PartitionedCall")
    file.op(BASE + 40, BASE + 50, UPDATE)  # begins when the call ends: not within it
    file.op(BASE + 6, BASE + 12, FORWARD, thread=78)  # at the same time on another thread
    assert rows(read(file, tmp_path).spans, "start_ns", "kind", "phase") == [
        (BASE + 5, "host", None),
        (BASE + 6, "op", "forward"),
        (BASE + 10, "op", "forward"),
        (BASE + 20, "op", "backward"),
        (BASE + 40, "op", "optimizer"),
    ]


def test_compiling_is_a_host_span_without_a_phase(tmp_path: Path) -> None:
    file = NvtxFile().op(BASE + 1, BASE + 9, "XlaCompile:#module=m#")
    found = rows(read(file, tmp_path).spans, "kind", "phase", "activity", "replica")
    assert found == [("host", None, None, None)]


def test_a_collective_of_tensorflow_is_an_operation_without_an_end_of_its_own(
    tmp_path: Path,
) -> None:
    file = NvtxFile().op(BASE + 1, BASE + 9, "adam/CollectiveReduceV2:CollectiveReduceV2")
    found = rows(read(file, tmp_path).spans, "kind", "phase", "op", "activity")
    assert found == [("op", "allreduce", "allreduce", None)]


def test_our_own_ranges_are_apart_and_all_others_are_host_spans(tmp_path: Path) -> None:
    file = NvtxFile().add(BASE + 1, BASE + 50, "step 7", span_format.NVTX_DOMAIN)
    file.add(BASE + 2, BASE + 9, "phase input", span_format.NVTX_DOMAIN)
    file.add(BASE + 3, BASE + 3, "hpcprof_beacon", span_format.NVTX_DOMAIN, nvtx_format.MARK)
    file.add(BASE + 4, BASE + 6, "epoch", "mine").add(BASE + 5, BASE + 6, "", None)
    found = read(file, tmp_path)
    assert rows(found.own, "kind", "name", "step", "phase") == [
        ("step", "step", 7, None),
        ("phase", "input", None, "input"),
    ]
    assert rows(found.spans, "kind", "name", "phase") == [
        ("host", "epoch", None),
        ("host", "range without a name", None),
    ]
    assert (found.damaged, found.torn, found.warnings) == (0, False, ())


def test_a_torn_end_and_senseless_records_are_left_out_and_counted(tmp_path: Path) -> None:
    file = NvtxFile().op(BASE + 1, BASE + 2, FORWARD).op(BASE + 9, BASE + 3, FORWARD)
    good = (BASE, BASE + 9)
    names = ((88, 2, nvtx_format.PUSH_POP), (1, 88, nvtx_format.PUSH_POP), (1, 2, 55))
    for name, domain, kind in names:  # an unknown name, an unknown domain, an unknown kind
        file.content += span_format.RECORD.pack(*good, name, domain, 77, kind, 0)
    file.op(BASE + 4, BASE + 5, FORWARD).op(BASE + 6, BASE + 7, FORWARD)
    found = read(file, tmp_path, cut=1)
    assert rows(found.spans, "start_ns") == [(BASE + 1,), (BASE + 4,)]
    assert (found.torn, found.damaged) == (True, 4)
    assert found.warnings == (
        "the last record was cut in the middle and left out (killed while writing)",
        "4 records make no sense and were left out",
    )


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (NvtxFile(rank=4), "was written by rank 4"),
        (NvtxFile(version=9), "has format 9, this hpcprof reads 1"),
        (NvtxFile(magic=span_format.MAGIC), "does not hold NVTX ranges of hpcprof"),
    ],
)
def test_a_foreign_file_is_refused_by_name(file: NvtxFile, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"rank 3: .*nvtx.bin {said}"):
        read(file, tmp_path)


def test_a_file_within_its_header_says_what_is_lost(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends within its header \(39 bytes\).*its NVTX ranges"):
        read(NvtxFile(), tmp_path, cut=1)


def test_nsys_gives_the_same_operations(tmp_path: Path) -> None:
    names = [NEXT, FORWARD, BACKWARD, UPDATE, "adam/CollectiveReduceV2:CollectiveReduceV2"]
    file, export = NvtxFile(), Export().domain(7, "TSL").domain(1, "hpcprof")
    export.range(0, 1000, "step 0", 1)
    for index, name in enumerate(names):
        file.op(BASE + 10 * index, BASE + 10 * index + 5, name)
        export.range(10 * index, 10 * index + 5, name, 7)
    seen = read_export(export.save(tmp_path / "r.sqlite"), None, None).spans
    columns = ("kind", "name", "phase", "activity", "op", "replica", "step")
    assert rows(seen, *columns) == rows(read(file, tmp_path).spans, *columns)
    assert set(seen["source"]) == {"nsys"}


# --- in a rank -------------------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path: Path) -> ArtifactPaths:
    made = ArtifactPaths(tmp_path / "run")
    made.rank_folder(RANK).mkdir(parents=True)
    manifest(made)
    return made


def manifest(paths: ArtifactPaths, **fields: Any) -> None:
    identity = {"rank": RANK, "local_rank": 1, "world_size": 8, "node": "node2"}
    record = new_manifest({**identity, "job_id": "4711", "slurm_step": "0"}, ["python"])
    moment = {"realtime_ns": OPENED_REALTIME_NS, "monotonic_ns": OPENED_MONOTONIC_NS}
    record.update(started=moment, ended=moment, exit_code=0, recorder={"name": "nvtx"})
    atomic.write_json(paths.manifest(RANK), {**record, **fields})


def own_records(paths: ArtifactPaths, steps: int = 3, *, evaluates: bool = False) -> None:
    file = SpanFile(rank=RANK)
    for step in range(steps):
        start = BASE + step * MS
        if evaluates:
            file.phase(start, start + 200_000, "eval", step)
        file.step(start + 300_000, start + 900_000, step)
    paths.spans(RANK).write_bytes(file.content)


def ranges(steps: int = 3, *, with_own: bool = False) -> NvtxFile:
    file = NvtxFile()
    for step in range(steps):
        start = BASE + step * MS
        if with_own:
            file.add(start + 300_000, start + 900_000, f"step {step}", span_format.NVTX_DOMAIN)
        file.op(start + 100_000, start + 110_000, FORWARD)
        file.op(start + 400_000, start + 500_000, BACKWARD)
        file.allreduce(start + 500_000, start + 700_000, 64)
    return file


def save(paths: ArtifactPaths, file: NvtxFile, cut: int = 0) -> None:
    paths.nvtx_record(RANK).write_bytes(file.content[: len(file.content) - cut])


def rank(paths: ArtifactPaths) -> Trace:
    work = paths.run_json.parent / "work"
    work.mkdir(exist_ok=True)
    return read_rank(paths, RANK, work, None)


def test_the_recorders_ranges_have_the_steps_of_our_records(paths: ArtifactPaths) -> None:
    own_records(paths)
    save(paths, ranges(with_own=True))
    trace = rank(paths)
    state = trace.rank.sources["recorder"]
    assert (state.state, state.rows, state.first_step, state.last_step) == ("OK", 9, 0, 2)
    seen = trace.spans[trace.spans["source"] == "recorder"]
    # what starts before the first step belongs to none
    assert rows(seen, "kind", "step") == [
        *(("op", None), ("op", 0), ("collective", 0)),
        *(("op", 1), ("op", 1), ("collective", 1)),
        *(("op", 2), ("op", 2), ("collective", 2)),
    ]
    assert (trace.spans["kind"] == "step").sum() == 3


def test_without_our_records_the_ranges_that_the_recorder_saw_are_the_steps(
    paths: ArtifactPaths,
) -> None:
    save(paths, ranges(with_own=True))
    trace = rank(paths)
    assert (trace.rank.state, trace.rank.sources["spans"].state) == ("PARTIAL", "LOST")
    steps = trace.spans[trace.spans["kind"] == "step"]
    assert steps["step"].tolist() == [0, 1, 2]
    assert trace.spans.loc[trace.spans["kind"] == "collective", "step"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("with_recorder", [True, False])
def test_a_rank_with_a_recorder_is_as_complete_as_one_without(
    paths: ArtifactPaths, *, with_recorder: bool
) -> None:
    own_records(paths)
    if with_recorder:
        save(paths, ranges())
    info = rank(paths).rank
    assert (info.state, info.reason) == ("NOT_PROFILED", "nsys: no profiler was asked for")


def test_a_torn_record_is_partial_and_the_rank_is_none_the_worse(paths: ArtifactPaths) -> None:
    own_records(paths)
    save(paths, ranges(), cut=7)
    info = rank(paths).rank
    state = info.sources["recorder"]
    assert state.state == "PARTIAL"
    assert state.reason.startswith("the last record was cut in the middle")
    assert info.state == "NOT_PROFILED"


def test_a_recorder_that_nobody_loaded_lacks_nothing(paths: ArtifactPaths) -> None:
    own_records(paths)
    state = rank(paths).rank.sources["recorder"]
    assert state.state == "NOT_PROFILED"
    assert "nothing in the training calls NVTX" in state.reason


@pytest.mark.parametrize(
    ("op_steps", "state", "reason"),
    [
        (None, "EMPTY", "the recorder was loaded and heard of no range"),
        ("10-29", "EMPTY", "the recorder was loaded and heard of no range"),
        (
            "not available: no step of 10-29: the training ended at step 2",
            "NOT_PROFILED",
            "the training has no NVTX ranges; names of operations: not available: no step of "
            "10-29: the training ended at step 2",
        ),
    ],
)
def test_a_recorder_that_heard_nothing_is_empty_unless_nothing_was_said(
    paths: ArtifactPaths, op_steps: str | None, state: str, reason: str
) -> None:
    own_records(paths)
    save(paths, NvtxFile())
    paths.training(RANK).write_text(json.dumps({**new_training_record(), "op_steps": op_steps}))
    found = rank(paths).rank.sources["recorder"]
    assert (found.state, found.reason) == (state, reason)


def test_a_foreign_file_is_lost_and_keeps_nothing_else_from_being_read(
    paths: ArtifactPaths,
) -> None:
    own_records(paths)
    save(paths, NvtxFile(rank=4))
    trace = rank(paths)
    state = trace.rank.sources["recorder"]
    assert state.state == "LOST"
    assert state.reason.startswith("rank 3: nvtx.bin was written by rank 4")
    assert len(trace.spans) == 3


def test_the_file_of_another_training_is_lost(paths: ArtifactPaths) -> None:
    paths.spans(RANK).write_bytes(SpanFile(rank=RANK, pid=99).step(BASE, BASE + MS, 0).content)
    save(paths, ranges())  # its times fit
    trace = rank(paths)
    state = trace.rank.sources["recorder"]
    assert (state.state, state.reason) == (
        "LOST",
        "nvtx.bin is of process 4711 and spans.bin of 99: not of one training",
    )
    assert set(trace.spans["source"]) == {"hpcprof"}


def test_a_training_of_which_hooks_saw_no_step_is_said_to_be_one(paths: ArtifactPaths) -> None:
    assert "annotate was not called" in rank(paths).rank.sources["spans"].reason
    paths.training(RANK).write_text(json.dumps(new_training_record()))
    state = rank(paths).rank.sources["spans"]
    assert state.state == "LOST"
    assert state.reason.startswith("hooks saw no step of this training")
    paths.training(RANK).write_text(json.dumps({**new_training_record(), "steps": 7}))
    assert "its recording failed" in rank(paths).rank.sources["spans"].reason


def test_without_a_recorder_it_is_no_source_of_the_rank(paths: ArtifactPaths) -> None:
    manifest(paths, recorder={"name": "none", "reason": "it is not wanted"})
    own_records(paths)
    assert set(rank(paths).rank.sources) == {"spans", "nsys"}


def test_where_nsys_recorded_too_no_collective_counts_twice(paths: ArtifactPaths) -> None:
    manifest(paths, profiler={"name": "nsys"})
    own_records(paths)
    export = Export().domain(1, "hpcprof").domain(2, "HorovodOps")
    for step in range(3):
        export.beacon(step, BASE, step * MS, 4_000)
        start = step * MS
        export.range(start + 300_000, start + 900_000, f"step {step}", 1)
        export.range(start + 500_000, start + 700_000, "HorovodAllreduce", 2, kind=60, payload=64)
    export.save(paths.nsys_sqlite(RANK))
    save(paths, ranges())
    trace = rank(paths)
    assert (trace.spans["kind"] == "collective").sum() == 3
    assert set(trace.spans["source"]) == {"hpcprof", "nsys"}
    state = trace.rank.sources["recorder"]
    assert state.rows == 0
    assert "nsys recorded the same ranges" in state.warnings[-1]


def test_operations_during_an_evaluation_are_of_it(paths: ArtifactPaths) -> None:
    own_records(paths, evaluates=True)
    save(paths, ranges())
    spans = rank(paths).spans
    ops = spans[spans["kind"] == "op"]
    assert rows(ops, "name", "phase") == [(FORWARD, "eval"), (BACKWARD, "backward")] * 3


def test_what_hooks_saw_decides_over_unscoped_names(paths: ArtifactPaths) -> None:
    own_records(paths)
    file = NvtxFile()
    for index, name in enumerate(("MatMul_2:MatMul", "MatMul:MatMul", "Cast_7:Cast")):
        file.op(BASE + 400_000 + index * 10, BASE + 400_005 + index * 10, name)
    save(paths, file)
    record = new_training_record()
    record["op_origins"] = {"backward": ["MatMul_2"], "input": ["Cast_7"]}
    paths.training(RANK).write_text(json.dumps(record))
    seen = rank(paths).spans
    seen = seen[seen["source"] == "recorder"]
    assert rows(seen, "kind", "phase") == [
        *(("op", "backward"), ("op", "forward"), ("host", None)),
    ]
