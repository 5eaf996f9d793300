"""What runs on a GPU has the phase of the operation that launched it, in an export of nsys."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.readers.nsys_sqlite import read_export
from hpcprof.trace import check_spans
from tests.unit.nsys_export import PID, Export, gtid

pytestmark = pytest.mark.unit

FORWARD, BACKWARD = "m/d/MatMul:MatMul", "gradient_tape/m/d/MatMul:MatMul"
TSL = 7


class Launches:
    """An export with operations on thread 77 and what threads launch."""

    def __init__(self) -> None:
        self.export = Export().domain(TSL, "TSL").domain(1, "hpcprof")

    def op(self, start: int, end: int, name: str) -> None:
        self.export.range(start, end, name, TSL)

    def kernel(self, called: int, correlation: int, *, thread: int = 77, copies: int = 1) -> None:
        """A call at ``called``, and what it starts on the GPU much later."""
        call = (called, called + 2, gtid(PID, thread), correlation)
        self.export.row("CUPTI_ACTIVITY_KIND_RUNTIME", *call, self.export.text("cudaLaunchKernel"))
        for index in range(copies):
            start = 5_000 + 10 * correlation + index
            row = (start, start + 1, gtid(PID, 0), 0, 7, correlation, self.export.text("gemm"))
            self.export.row("CUPTI_ACTIVITY_KIND_KERNEL", *row)

    def phases(self, tmp_path: Path) -> dict[int, list[str | None]]:
        """The phases of the kernels by correlation number."""
        spans = check_spans(read_export(self.export.save(tmp_path / "r.sqlite"), PID, None).spans)
        kernels = spans[spans["kind"] == "kernel"]
        texts = kernels["phase"].astype(object).where(kernels["phase"].notna(), None)
        found: dict[int, list[str | None]] = {}
        for correlation, text in zip(kernels["correlation"], texts, strict=True):
            found.setdefault(int(correlation), []).append(text)
        return found


def test_a_kernel_has_the_phase_of_the_operation_in_which_its_launch_began(tmp_path: Path) -> None:
    made = Launches()
    made.op(100, 200, FORWARD)
    made.op(200, 300, BACKWARD)
    for correlation, called in enumerate((100, 150, 199, 200, 299, 300, 99), start=1):
        made.kernel(called, correlation)
    forward, backward = ["forward"], ["backward"]
    assert made.phases(tmp_path) == {
        **{1: forward, 2: forward, 3: forward, 4: backward, 5: backward},
        **{6: [None], 7: [None]},
    }


def test_a_launch_from_another_thread_is_of_no_operation(tmp_path: Path) -> None:
    made = Launches()
    made.op(100, 200, FORWARD)
    made.kernel(150, 1, thread=78)
    made.kernel(150, 2)
    assert made.phases(tmp_path) == {1: [None], 2: ["forward"]}


def test_a_call_that_starts_several_kernels_gives_all_of_them_its_phase(tmp_path: Path) -> None:
    made = Launches()
    made.op(100, 200, BACKWARD)
    made.kernel(120, 9, copies=3)
    assert made.phases(tmp_path) == {9: ["backward"] * 3}


def test_a_call_between_operations_and_within_an_outer_one_is_of_none(tmp_path: Path) -> None:
    made = Launches()
    made.op(100, 400, "PartitionedCall:PartitionedCall")
    made.op(150, 200, FORWARD)
    made.kernel(160, 1)
    made.kernel(300, 2)
    assert made.phases(tmp_path) == {1: ["forward"], 2: [None]}


def test_without_named_operations_kernels_have_no_phase(tmp_path: Path) -> None:
    made = Launches()
    made.kernel(150, 1)
    assert made.phases(tmp_path) == {1: [None]}
