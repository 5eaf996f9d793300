"""Notes of a manifest: what is believed, and that damage costs the note and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from hpcprof.artifacts.manifest import new_manifest
from hpcprof.readers.manifest_notes import manifest_notes
from hpcprof.trace.check import check_spans
from hpcprof.trace.model import Gpu, Hang

pytestmark = pytest.mark.unit

GPU = {"visible": 0, "uuid": "GPU-1c3f", "name": "A100", "pci_bus": "00000000:18:00.0"}
AT = {"realtime_ns": 9_000, "monotonic_ns": 5_000}
HANG = {"step": 57, "seconds": 610.5, "at": AT}


def test_whole_notes_are_read_as_they_are() -> None:
    notes = manifest_notes(
        {
            "profiler_busy": [[1_000, 2_000, "nsys start"], [3_000, 3_500, "nsys stop"]],
            "gpus": [GPU, {"visible": 1, "uuid": None, "name": None, "pci_bus": None}],
            "horovod_size": 4,
            "nvtx_version": " 0.2.12\n",
            "hangs": [HANG, {"step": -1, "seconds": 600, "at": None}],
        }
    )
    assert notes.warnings == ()
    assert notes.gpus == (Gpu(0, "GPU-1c3f", "A100"), Gpu(1, None, None))
    assert (notes.horovod_size, notes.nvtx_version) == (4, "0.2.12")
    assert notes.hangs == (Hang(57, 610.5, 5_000), Hang(-1, 600))
    spans = check_spans(notes.busy_spans())
    shown = spans[["start_ns", "end_ns", "kind", "name", "source"]].values.tolist()
    assert shown == [
        [1_000, 2_000, "busy", "nsys start", "launcher"],
        [3_000, 3_500, "busy", "nsys stop", "launcher"],
    ]
    assert spans["step"].isna().all()


def test_a_hang_noticed_from_outside_has_no_stacks_and_no_step() -> None:
    notes = manifest_notes({"hangs": [{"step": None, "seconds": 640.0, "at": AT, "threads": []}]})
    assert notes.hangs == (Hang(None, 640.0, 5_000, has_stacks=False),)


@pytest.mark.parametrize("record", [{}, new_manifest({}, [])])
def test_a_manifest_without_notes_says_nothing(record: dict[str, Any]) -> None:
    notes = manifest_notes(record)
    assert (notes.busy, notes.gpus, notes.horovod_size) == ((), None, None)
    assert (notes.nvtx_version, notes.hangs, notes.warnings) == ("", (), ())
    assert len(check_spans(notes.busy_spans())) == 0


def test_a_rank_that_sees_no_gpu_differs_from_one_of_which_nobody_knows() -> None:
    assert manifest_notes({"gpus": []}).gpus == ()


@pytest.mark.parametrize(
    "busy",
    [
        "nsys",
        [[1, 2]],
        [[1, 2, "x", 4]],
        [["1", 2, "x"]],
        [[2, 1, "x"]],
        [[0, 1, "x"]],
        [[True, 2, "x"]],
        [[1.5, 2.5, "x"]],
        [[1, 2**63, "x"]],
        [None],
        {"a": 1},
    ],
)
def test_damaged_busy_times_are_ignored_with_a_warning_and_the_others_are_kept(busy: Any) -> None:
    given = [*busy, [10, 20, "nsys stop"]] if isinstance(busy, list) else busy
    notes = manifest_notes({"profiler_busy": given})
    assert [time.start_ns for time in notes.busy] == ([10] if isinstance(busy, list) else [])
    assert notes.warnings == (
        "profiler_busy in the manifest makes no sense; what does not is ignored, and steps in "
        "which nsys was at work may be among those compared",
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", "GPU-1"),
        ("gpus", [GPU, {"uuid": "GPU-2"}]),
        ("gpus", [GPU, 7]),
        ("gpus", [GPU, {"visible": -1}]),
        ("horovod_size", "4"),
        ("horovod_size", 0),
        ("horovod_size", True),
        ("horovod_size", 1.0),
        ("hangs", {"step": 1}),
        ("hangs", [{"step": 1}]),
        ("hangs", [{"step": 1, "seconds": "long"}]),
        ("hangs", [{"step": "1", "seconds": 3}]),
        ("hangs", [{"step": -2, "seconds": 3}]),
        ("hangs", [{"step": 1, "seconds": float("nan")}]),
        ("hangs", [{"step": 1, "seconds": 10**400}]),
        ("hangs", [{"step": 1, "seconds": 3, "at": "now"}]),
        ("hangs", [None]),
    ],
)
def test_a_damaged_note_is_not_known_and_told(field: str, value: Any) -> None:
    notes = manifest_notes({field: value})
    assert (notes.gpus, notes.horovod_size, notes.hangs) == (None, None, ())
    assert notes.warnings == (f"{field} in the manifest makes no sense; what does not is ignored",)


@pytest.mark.parametrize("version", [None, 7, [], ""])
def test_an_nvtx_version_that_is_no_text_is_not_known(version: Any) -> None:
    assert manifest_notes({"nvtx_version": version}).nvtx_version == ""
