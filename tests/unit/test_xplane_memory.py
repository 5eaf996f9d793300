"""Memory events of tf.profiler as blocks and levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.pipeline.memory import memory_of_ranks
from hpcprof.readers.xplane import read_tf_memory
from hpcprof.readers.xplane_file import read_space
from hpcprof.readers.xplane_memory import read_memory
from hpcprof.trace import columns as c
from hpcprof.trace.memory import MemoryRecord
from hpcprof.trace.model import RankInfo, Training
from tests.unit.xplane_writer import PlaneBuilder, XPlaneFile

pytestmark = pytest.mark.unit

THREAD = "tf_Compute/17"
TRAIN, DATA = -71, -72


class _Allocator:
    """Writes the events of one allocator, which knows how full it is."""

    def __init__(self, plane: PlaneBuilder, allocated: int = 0) -> None:
        self._plane = plane
        self._allocated = allocated

    def _event(self, time: int, name: str, address: int, nbytes: int, **more: Any) -> _Allocator:
        stats = {"allocator_name": "GPU_0_bfc", "addr": address, "allocation_bytes": nbytes}
        stats |= {"requested_bytes": nbytes - 6, "bytes_allocated": self._allocated}
        stats |= {"bytes_available": 10_000 - self._allocated, "peak_bytes_in_use": 777}
        self._plane.add(THREAD, time, time, name, **{**stats, **more})
        return self

    def take(self, time: int, address: int, nbytes: int, **more: Any) -> _Allocator:
        self._allocated += nbytes
        return self._event(time, "MemoryAllocation", address, nbytes, **more)

    def give_back(self, time: int, address: int, nbytes: int) -> _Allocator:
        self._allocated -= nbytes
        return self._event(time, "MemoryDeallocation", address, nbytes, tf_op="(null)")


def _read(file: XPlaneFile, folder: Path) -> MemoryRecord:
    return read_memory(read_space(file.write(folder), 3).planes[0], None)


def test_a_block_knows_its_operation_and_the_one_that_lets_go_of_it(tmp_path: Path) -> None:
    file = XPlaneFile()
    plane = file.plane().run(THREAD, 0, 900, TRAIN)
    plane.add(THREAD, 10, 100, "gradient_tape/m/a:MatMul").add(THREAD, 200, 300, "adam/b:Mul")
    _Allocator(plane).take(20, 5, 256, tf_op="gradient_tape/m/a", id=TRAIN).give_back(310, 5, 256)
    (block,) = _read(file, tmp_path).blocks.to_dict("records")
    assert (block["start_ns"], block["end_ns"], block["bytes"]) == (20, 310, 256)
    assert (block["op"], block["phase"]) == ("gradient_tape/m/a", c.BACKWARD)
    assert (block["op_end_ns"], block["freed_in"]) == (100, c.OPTIMIZER)
    assert (block["requested_bytes"], block["is_freed"], block["is_older"]) == (250, True, False)


def test_an_address_that_is_used_again_is_another_block(tmp_path: Path) -> None:
    file = XPlaneFile()
    allocator = _Allocator(file.plane())
    allocator.take(10, 5, 256).give_back(20, 5, 256).take(30, 5, 512)
    blocks = _read(file, tmp_path).blocks
    assert blocks["bytes"].tolist() == [256, 512]
    assert blocks["end_ns"].tolist() == [20, 31]  # the second is not returned
    assert blocks["is_freed"].tolist() == [True, False]


def test_a_return_of_what_nobody_saw_come_is_an_older_block(tmp_path: Path) -> None:
    file = XPlaneFile()
    _Allocator(file.plane(), allocated=1000).take(10, 5, 256).give_back(50, 9, 400)
    blocks = _read(file, tmp_path).blocks.sort_values("bytes")
    assert blocks["is_older"].tolist() == [False, True]
    assert blocks["start_ns"].tolist() == [10, 10]
    assert blocks["end_ns"].tolist() == [51, 50]


def test_what_tf_data_makes_is_known_by_its_run(tmp_path: Path) -> None:
    file = XPlaneFile()
    plane = file.plane()
    plane.add("tf_data", 0, 5, "InstantiatedCapturedFunction::RunAsync", id=DATA)
    _Allocator(plane).take(10, 5, 256, tf_op="a", id=DATA).take(11, 6, 256, tf_op="a", id=TRAIN)
    assert _read(file, tmp_path).blocks["is_background"].tolist() == [True, False]


def test_what_receives_the_batch_is_input_whatever_it_is_named(tmp_path: Path) -> None:
    file = XPlaneFile()
    stats = {"tf_op": "SameWorkerRecvDone", "region_type": "dynamic"}
    _Allocator(file.plane()).take(10, 5, 256, **stats)
    assert _read(file, tmp_path).blocks["phase"].tolist() == [c.INPUT]


def test_a_whole_function_is_in_no_phase_of_a_step(tmp_path: Path) -> None:
    file = XPlaneFile()
    _Allocator(file.plane()).take(10, 5, 256, tf_op="__inference_train_17")
    assert _read(file, tmp_path).blocks["phase"].tolist() == [c.COMPUTE_PHASE]


def test_levels_are_the_allocators_own(tmp_path: Path) -> None:
    file = XPlaneFile()
    _Allocator(file.plane(), allocated=1000).take(10, 5, 256).give_back(50, 5, 256)
    levels = _read(file, tmp_path).levels
    assert levels["allocated_bytes"].tolist() == [1256, 1000]
    assert set(levels["limit_bytes"]) == {10_000} and set(levels["peak_bytes"]) == {777}


def test_without_events_there_are_no_blocks_and_no_levels(tmp_path: Path) -> None:
    file = XPlaneFile()
    file.plane().add(THREAD, 1, 2, "m/a:MatMul")
    record = _read(file, tmp_path)
    assert (len(record.blocks), len(record.levels)) == (0, 0)


def test_a_real_file_of_gpus_gives_a_block_per_address_and_time(test_data: Path) -> None:
    path = test_data / "xplane/tensorflow_2020_gpu_multi_worker.xplane.pb"
    planes = read_space(path, 3).planes
    record = read_memory(next(plane for plane in planes if plane.name == "/host:CPU"), None)
    assert (record.blocks["end_ns"] >= record.blocks["start_ns"]).all()
    assert len(record.levels) >= len(record.blocks)


def test_blocks_levels_and_steps_come_on_one_clock(tmp_path: Path) -> None:
    file = XPlaneFile()
    plane = file.plane().sync(100_000, 0, 5_000_100_000).step(200_000, 300_000, 30)
    plane.add(THREAD, 240_000, 260_000, "m/a:MatMul")
    _Allocator(plane).take(250_000, 5, 256, tf_op="m/a").give_back(290_000, 5, 256)
    file.write(tmp_path)
    record, steps = read_tf_memory(tmp_path, 3, None)
    assert steps[c.START_NS].tolist() == [5_000_200_000]
    assert record.blocks[["start_ns", "end_ns", "op_end_ns"]].values.tolist() == [
        [5_000_250_000, 5_000_290_000, 5_000_260_000]
    ]
    assert record.levels["time_ns"].tolist() == [5_000_250_000, 5_000_290_000]


def test_a_file_that_cannot_be_read_gives_no_rows(tmp_path: Path) -> None:
    assert len(read_tf_memory(tmp_path, 3, None).record.levels) == 0
    XPlaneFile().write(tmp_path).write_bytes(b"\x0a\xff")
    assert len(read_tf_memory(tmp_path, 3, None).record.levels) == 0


def test_ranks_whose_allocators_were_watched_have_a_split(tmp_path: Path) -> None:
    paths = ArtifactPaths(tmp_path)
    file = XPlaneFile()
    plane = file.plane().step(200, 300, 30)
    allocator = _Allocator(plane).take(150, 4, 256, requested_bytes=256)
    allocator.take(250, 5, 512, requested_bytes=500).give_back(290, 5, 512)
    file.write(paths.tf_profile(1))
    weight = ("kernel", 256, "weight", True)
    infos = [
        RankInfo(rank, rank, "n", 2, training=Training(variables=(weight,))) for rank in (0, 1)
    ]
    ((rank, (split,)),) = memory_of_ranks(paths, infos).items()
    assert (rank, split.status, split.step, split.total_bytes) == (1, "ok", 30, 768)
    assert split.bytes_by_class["weights"] == 256
