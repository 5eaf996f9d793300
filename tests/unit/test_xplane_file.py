"""XPlane files: what is in them, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.errors import InputError
from hpcprof.readers.xplane_device import gpu_planes, read_device
from hpcprof.readers.xplane_file import read_space
from hpcprof.trace import columns as c
from tests.unit.xplane_writer import XPlaneFile

pytestmark = pytest.mark.unit

RANK = 3


def test_events_come_by_thread_and_time_the_outer_one_first(tmp_path: Path) -> None:
    file = XPlaneFile()
    host = file.plane()
    host.add("b", 50, 60, "late").add("b", 10, 20, "inner").add("b", 10, 40, "outer")
    host.add("a", 70, 80, "other thread")
    plane = read_space(file.write(tmp_path), RANK).planes[0]
    assert plane.lines == ["b", "a"]
    assert [plane.names[code] for code in plane.events.name] == [
        *("outer", "inner", "late", "other thread")
    ]
    assert plane.events.start_ns.tolist() == [10, 10, 50, 70]
    assert plane.events.end_ns.tolist() == [40, 20, 60, 80]


def test_statistics_are_numbers_with_their_sign_and_texts(tmp_path: Path) -> None:
    file = XPlaneFile()
    file.plane().add("a", 1, 2, "x", step_id=-5, kernel_type="MatMul").add("a", 3, 4, "x")
    plane = read_space(file.write(tmp_path), RANK).planes[0]
    found = plane.named("x", "of no event")
    assert plane.stats_of(0) == {"step_id": -5, "kernel_type": "MatMul"}
    assert plane.int_stat(found, "step_id", -1).tolist() == [-5, -1]


def test_threads_of_one_name_are_told_apart(tmp_path: Path) -> None:
    file = XPlaneFile()
    file.plane().add("python", 1, 2, "x")
    file.message.planes[0].lines.add(name="python")
    assert read_space(file.write(tmp_path), RANK).planes[0].lines == ["python", "python (2)"]


@pytest.mark.parametrize("content", [b"", b"no XPlane file at all", b"\x0a\xff\xff\xff\x07"])
def test_another_file_is_refused_with_its_name_and_rank(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node17.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"rank 3: {path} (is no|holds no)"):
        read_space(path, RANK)


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    file = XPlaneFile()
    file.plane().add("a", 1, 2, "x")
    path = file.write(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="is no whole XPlane file"):
        read_space(path, RANK)


def test_without_protobuf_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['google'] = sys.modules['google.protobuf'] = None\n"
        "from hpcprof.readers.xplane_schema import space_class\n"
        "from hpcprof.errors import EnvironmentLacksError\n"
        "try: space_class()\n"
        "except EnvironmentLacksError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'hpcprof[xplane]'" in done.stdout


def test_a_real_file_of_tensorflow_on_gpus_gives_kernels_and_copies(test_data: Path) -> None:
    path = test_data / "xplane/tensorflow_2020_gpu_multi_worker.xplane.pb"
    planes = gpu_planes(read_space(path, RANK).planes)
    # one got a batch only
    assert [(plane.name, replica) for plane, replica in planes] == [
        *(("/device:GPU:1", None), ("/device:GPU:4", 0), ("/device:GPU:6", 1))
    ]
    spans = read_device(*planes[1], None)
    assert spans[c.KIND].value_counts().loc[[c.KERNEL, c.MEMCPY]].tolist() == [665, 94]
    assert set(spans[c.LANE]) == {"stream 63", "stream 134", "stream 135", "stream 136"}
    copies = spans[spans[c.KIND] == c.MEMCPY]
    assert copies[c.BYTES].notna().all() and copies[c.BYTES].iloc[0] == 112
    assert copies[c.NAME].iloc[0] == "memcpy HtoD"
    assert spans[c.CORRELATION].notna().all()
    # the file holds a forward pass and the beginning of the backward pass
    phases = spans[spans[c.KIND] == c.KERNEL][c.PHASE].value_counts()
    assert phases[phases > 0].to_dict() == {c.FORWARD: 660, c.BACKWARD: 5}


@pytest.mark.parametrize(
    ("name", "planes", "start_ns"),
    [
        ("tracelens_jax_8gpu_conv", 11, 1771595639214724894),
        ("tracelens_jax_gemm", 11, 1771595650217823548),
        ("xprof_tpu_inference", 7, 1741722099081044120),
    ],
)
def test_real_files_of_other_programs_load(
    test_data: Path, name: str, planes: int, start_ns: int
) -> None:
    space = read_space(test_data / f"xplane/{name}.xplane.pb", RANK)
    assert (len(space.planes), space.start_ns) == (planes, start_ns)
    for plane in space.planes:
        assert (plane.events.end_ns >= plane.events.start_ns).all()


def test_a_file_that_a_text_decoder_destroyed_is_refused(test_data: Path) -> None:
    path = test_data / "xplane/xprof_corrupt_utf8_replaced.xplane.pb"
    with pytest.raises(InputError, match=r"rank 3: .*corrupt_utf8.* is no whole XPlane file"):
        read_space(path, RANK)
