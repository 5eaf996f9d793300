"""What tf.profiler recorded of a training, as spans on the node's clock."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hpcprof.artifacts import manifest
from hpcprof.readers.xplane import TfProfile, read_tf_profile
from hpcprof.trace import columns as c
from hpcprof.trace.frame import anchors_frame
from hpcprof.trace.model import Training
from tests.unit.xplane_writer import PlaneBuilder, XPlaneFile

pytestmark = pytest.mark.unit

RANK = 3
MONOTONIC = 5_000_000_000  # at time 0 of the profile
TRAIN, DATA = -71, -72  # runs of functions
THREAD, DATA_THREAD = "tf_Compute/17", "tf_data_private_threadpool/18"


def _anchors(*rows: tuple[int, int]) -> pd.DataFrame:
    """Pairs of CLOCK_MONOTONIC and CLOCK_REALTIME."""
    return anchors_frame(
        {
            "seq": [-1] * len(rows),
            "before_ns": [monotonic for monotonic, _ in rows],
            "after_ns": [monotonic for monotonic, _ in rows],
            "realtime_ns": [real for _, real in rows],
        }
    )


def _host(file: XPlaneFile) -> PlaneBuilder:
    host = file.plane()
    return host.sync(100_000, 0, MONOTONIC + 100_000).sync(900_000, 1, MONOTONIC + 900_000)


def _read(
    file: XPlaneFile, folder: Path, anchors: pd.DataFrame | None = None, **training: object
) -> TfProfile:
    file.write(folder)
    known = _anchors() if anchors is None else anchors
    return read_tf_profile(folder, RANK, known, Training(**training))  # type: ignore[arg-type]


def _rows(profile: TfProfile, kind: str) -> list[tuple[str, int, int]]:
    """Name, start and end, in ns since the start of the profile."""
    spans = profile.spans[profile.spans[c.KIND] == kind]
    times = (spans[c.START_NS] - MONOTONIC).tolist(), (spans[c.END_NS] - MONOTONIC).tolist()
    return list(zip(spans[c.NAME], *times, strict=True))


def test_times_are_those_of_the_node_within_the_brackets_of_our_marks(tmp_path: Path) -> None:
    file = XPlaneFile()
    _host(file).run(THREAD, 200_000, 300_000, TRAIN).add(THREAD, 210_000, 250_000, "m/a:MatMul")
    profile = _read(file, tmp_path)
    assert profile.state.state == manifest.OK
    assert profile.state.clock_bound_ns == 400
    assert _rows(profile, c.EXECUTOR_OP) == [("m/a:MatMul", 210_000, 250_000)]


def test_time_is_counted_once_where_an_operation_lies_inside_another(tmp_path: Path) -> None:
    file = XPlaneFile()
    host = _host(file).run(THREAD, 0, 100, TRAIN).add(THREAD, 10, 60, "m/call:PartitionedCall")
    host.add(THREAD, 20, 30, "m/call/a:MatMul").add(THREAD, 30, 40, "gradient_tape/m/a:MatMul")
    profile = _read(file, tmp_path)
    assert sorted(_rows(profile, c.EXECUTOR_OP), key=lambda row: row[1]) == [
        ("m/call:PartitionedCall", 10, 20),
        ("m/call/a:MatMul", 20, 30),
        ("gradient_tape/m/a:MatMul", 30, 40),
        ("m/call:PartitionedCall", 40, 60),
    ]
    phases = profile.spans.set_index(c.NAME)[c.PHASE]
    assert phases["m/call/a:MatMul"] == c.FORWARD
    assert phases["gradient_tape/m/a:MatMul"] == c.BACKWARD


def test_what_tf_data_does_on_any_thread_is_in_no_phase_and_its_wait_is_input(
    tmp_path: Path,
) -> None:
    file = XPlaneFile()
    host = _host(file)
    host.add(DATA_THREAD, 0, 5, "InstantiatedCapturedFunction::RunAsync", id=DATA)
    host.run(THREAD, 10, 40, DATA).add(THREAD, 15, 35, "truediv:RealDiv")
    host.run(THREAD, 50, 90, TRAIN).add(THREAD, 55, 60, "truediv:RealDiv")
    host.add("python", 0, 48, "IteratorGetNextOp::DoCompute", id=-9)
    host.run("python", 10, 20, DATA).add("python", 11, 19, "sub:Sub")
    profile = _read(file, tmp_path, op_origins={"input": ("truediv",)})
    assert _rows(profile, c.EXECUTOR_OP) == [
        ("IteratorGetNext", 0, 48),
        ("truediv:RealDiv", 55, 60),
    ]
    spans = profile.spans
    operations = spans[spans[c.KIND] == c.EXECUTOR_OP]
    assert operations[c.PHASE].tolist() == [c.INPUT, c.FORWARD]
    assert operations[c.ACTIVITY].tolist() == [c.INPUT_ACTIVITY, c.COMPUTE]
    background = spans[spans[c.KIND] == c.HOST]
    assert background[[c.PHASE, c.REPLICA, c.ACTIVITY]].isna().all(axis=None)


def test_asking_whether_there_is_a_batch_is_waiting_for_it(tmp_path: Path) -> None:
    file = XPlaneFile()
    host = _host(file).add("get_next", 0, 30, "IteratorGetNextAsOptionalOp::DoCompute", id=TRAIN)
    host.run(THREAD, 40, 60, TRAIN).add(THREAD, 41, 43, "OptionalGetValue:OptionalGetValue")
    profile = _read(file, tmp_path)
    assert [row[1:] for row in _rows(profile, c.EXECUTOR_OP)] == [(0, 30), (41, 43)]
    assert set(profile.spans[c.PHASE]) == {c.INPUT}


def test_what_packs_gradients_of_several_replicas_is_allreduce(tmp_path: Path) -> None:
    file = XPlaneFile()
    host = _host(file).run(THREAD, 0, 900, TRAIN)
    for mark, time in (("Start", 20), ("Done", 30)):
        stats = {"name": "CollectiveReduceV2", "kernel_type": "CollectiveReduceV2", "step_id": 1}
        host.add(THREAD, time, time, f"ExecutorState::ProcessAsync::{mark}", **stats)
    host.add(THREAD, 10, 15, "concat:ConcatV2").add(THREAD, 40, 45, "m/concat:ConcatV2")
    profile = _read(file, tmp_path, replicas=2)
    operations = profile.spans[profile.spans[c.KIND] == c.EXECUTOR_OP]
    assert operations[c.PHASE].tolist() == [c.ALLREDUCE, c.FORWARD]


def test_functions_that_feed_several_devices_are_tf_datas_too(tmp_path: Path) -> None:
    file = XPlaneFile()
    host = _host(file)
    host.add(THREAD, 0, 30, "RemoteCallOp").add(THREAD, 1, 2, "FunctionRun", id=DATA)
    host.run(THREAD, 40, 60, DATA).add(THREAD, 41, 59, "a/b:Mul")
    host.add("python", 0, 5, "FunctionRun", id=TRAIN)
    host.run(THREAD, 70, 90, TRAIN).add(THREAD, 71, 89, "c/d:Mul")
    assert _rows(_read(file, tmp_path), c.EXECUTOR_OP) == [("c/d:Mul", 71, 89)]


def test_a_collective_lasts_from_enqueue_to_done_and_is_no_operation(tmp_path: Path) -> None:
    file = XPlaneFile()
    host = _host(file).run(THREAD, 0, 900, TRAIN)
    for name, kind, start, end in (
        ("g/HorovodAllreduce_0", "HorovodAllreduce", 10, 300),
        ("adam/CollectiveReduceV2", "CollectiveReduceV2", 20, 200),
        ("IteratorGetNext", "IteratorGetNext", 30, 100),
    ):
        stats = {"name": name, "kernel_type": kind, "step_id": TRAIN}
        host.add(THREAD, start, start + 5, "ExecutorState::ProcessAsync::Start", **stats)
        host.add("done", end, end + 1, "ExecutorState::ProcessAsync::Done", **stats)
    host.add("ring", 25, 190, "adam/CollectiveReduceV2:CollectiveReduceV2")
    profile = _read(file, tmp_path)
    assert _rows(profile, c.COLLECTIVE) == [
        ("g/HorovodAllreduce_0:HorovodAllreduce", 10, 300),
        ("adam/CollectiveReduceV2:CollectiveReduceV2", 20, 200),
    ]
    assert _rows(profile, c.EXECUTOR_OP) == []
    rows = profile.spans[profile.spans[c.KIND] == c.COLLECTIVE]
    assert set(rows[c.OP]) == {"allreduce"} and set(rows[c.REPLICA]) == {0}


def test_the_same_collective_in_two_runs_is_not_mixed_up_and_an_open_one_is_told(
    tmp_path: Path,
) -> None:
    file = XPlaneFile()
    host = _host(file)
    for run, mark, time in ((1, "Start", 10), (2, "Start", 20), (2, "Done", 30), (1, "Done", 40)):
        stats = {"name": "g", "kernel_type": "HorovodAllreduce", "step_id": run}
        host.add(THREAD, time, time, f"ExecutorState::ProcessAsync::{mark}", **stats)
    stats = {"name": "g", "kernel_type": "HorovodAllreduce", "step_id": 3}
    host.add(THREAD, 50, 51, "ExecutorState::ProcessAsync::Start", **stats)
    profile = _read(file, tmp_path)
    times = [(start, end) for _, start, end in _rows(profile, c.COLLECTIVE)]
    assert times == [(10, 40), (20, 30)]
    assert profile.state.warnings == ("1 collectives had not ended when the recording did",)


def test_our_steps_are_copies_and_those_of_keras_are_not_taken_for_them(tmp_path: Path) -> None:
    file = XPlaneFile()
    host = _host(file).step(200_000, 300_000, 30)
    host.add("python", 210_000, 290_000, "train", step_num=0, _r=1)
    host.run(THREAD, 220_000, 230_000, TRAIN).add(THREAD, 221_000, 229_000, "m/a:MatMul")
    steps = _read(file, tmp_path).steps
    assert steps[c.STEP].tolist() == [30]
    assert (steps[c.START_NS] - MONOTONIC).tolist() == [200_000]


def test_several_gpus_are_replicas_in_their_order(tmp_path: Path) -> None:
    file = XPlaneFile()
    _host(file)
    for number in (6, 4):
        device = file.plane(f"/device:GPU:{number}")
        device.add("Stream #7(Compute)", number, 50, "gemm").add("Steps", 0, 99, "0")
        device.add("Stream #8(Memcpy)", 60, 70, "MemcpyH2D", memcpy_details="size:64 dest:4")
        device.add("Stream #7(Compute)", 70, 80, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    file.plane("/device:GPU:5")
    spans = _read(file, tmp_path).spans
    kernels = spans[spans[c.NAME] == "gemm"]
    assert kernels[[c.REPLICA, c.START_NS]].values.tolist() == [
        [0, MONOTONIC + 4],
        [1, MONOTONIC + 6],
    ]
    assert spans[spans[c.KIND] == c.MEMCPY][c.BYTES].tolist() == [64, 64]
    nccl = spans[spans[c.ACTIVITY] == c.COLLECTIVE_ACTIVITY]
    assert nccl[c.KIND].tolist() == [c.KERNEL] * 2 and set(nccl[c.OP]) == {"allreduce"}
    assert len(spans) == 6


def test_kernels_have_the_phase_of_the_operation_that_launched_them(tmp_path: Path) -> None:
    file = XPlaneFile()
    _host(file)
    device = file.plane("/device:GPU:0")
    for time, stats in enumerate(
        [
            {"tf_op": "gradient_tape/m/a:MatMul", "level 0": "m/a:MatMul"},
            {"annotation": "adam/b:Mul#shape=(int32[3])#"},
            {"tf_op": "XlaModule:", "hlo_op": "fusion.3"},
            {"annotation": "MakeTensorFromProto"},
            {},
        ]
    ):
        device.add("Stream #7(Compute)", 10 * time, 10 * time + 5, "gemm", **stats)
    phases = _read(file, tmp_path).spans[c.PHASE]
    assert phases.astype(object).where(phases.notna(), None).tolist() == [
        *(c.BACKWARD, c.OPTIMIZER, c.COMPUTE_PHASE, None, None)
    ]


def test_without_marks_the_start_that_the_file_names_is_used_and_its_doubt_is_said(
    tmp_path: Path,
) -> None:
    file = XPlaneFile()
    file.plane().run(THREAD, 0, 100, TRAIN).add(THREAD, 10, 60, "m/a:MatMul")
    file.plane("Task Environment").stat(profile_start_time=1_800_000_000_000_000_000)
    anchors = _anchors((MONOTONIC + 77, 1_800_000_000_000_000_000 + 77))
    profile = _read(file, tmp_path, anchors)
    assert profile.state.state == manifest.PARTIAL
    assert "may be 1 ms off" in profile.state.reason
    assert _rows(profile, c.EXECUTOR_OP) == [("m/a:MatMul", 10, 60)]


def test_without_marks_and_start_nothing_is_placed(tmp_path: Path) -> None:
    file = XPlaneFile()
    file.plane().run(THREAD, 0, 100, TRAIN).add(THREAD, 10, 60, "m/a:MatMul")
    profile = _read(file, tmp_path, _anchors((MONOTONIC, 18)))
    assert profile.state.state == manifest.LOST
    assert "nothing ties its times to the node's clock" in profile.state.reason
    assert not len(profile.spans) and not len(profile.steps)


def test_errors_that_tensorflow_wrote_into_the_file_are_told(tmp_path: Path) -> None:
    file = XPlaneFile()
    _host(file).run(THREAD, 0, 100, TRAIN).add(THREAD, 10, 60, "m/a:MatMul")
    file.message.errors.append("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")
    file.message.warnings.append("2000000 events were dropped")
    state = _read(file, tmp_path).state
    assert (state.state, state.reason) == (
        manifest.PARTIAL,
        "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    )
    assert "2000000 events were dropped" in state.warnings


def test_a_broken_file_does_not_keep_another_one_from_being_read(tmp_path: Path) -> None:
    broken = XPlaneFile().write(tmp_path, "2026_01_02_03_04_04")
    broken.write_bytes(b"\x0a\xff")
    file = XPlaneFile()
    _host(file).run(THREAD, 0, 100, TRAIN).add(THREAD, 10, 60, "m/a:MatMul")
    profile = _read(file, tmp_path)
    assert profile.state.state == manifest.PARTIAL
    assert profile.state.reason.startswith("rank 3: plugins/profile/2026_01_02_03_04_04/node17")
    assert len(profile.spans) == 1


def test_no_folder_is_not_profiled_and_a_folder_without_a_file_is_lost(tmp_path: Path) -> None:
    states = []
    for folder in (tmp_path / "none", tmp_path):
        states.append(read_tf_profile(folder, RANK, _anchors(), None).state)
    assert [state.state for state in states] == [manifest.NOT_PROFILED, manifest.LOST]
    assert "killed before the last step" in states[1].reason


def test_a_recording_without_operations_is_empty(tmp_path: Path) -> None:
    file = XPlaneFile()
    _host(file)
    state = _read(file, tmp_path).state
    assert (state.state, state.reason) == (manifest.EMPTY, "no operation was recorded")
