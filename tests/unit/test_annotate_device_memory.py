"""Asking TensorFlow for its memory after steps, with a small module in TensorFlow's place."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import pytest

from hpcprof.annotate import training_notes
from hpcprof.annotate.device_memory import MemoryWatch

pytestmark = pytest.mark.unit


class _Counts:
    """``tf.config`` of a machine with one GPU whose memory grows by 10 bytes a step."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._devices = devices
        self.asked = 0
        self.experimental = self

    def list_logical_devices(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=f"/device:{name}") for name in ("CPU:0", "GPU:0")]

    def get_memory_info(self, device: str) -> dict[str, int]:
        if device not in self._devices:
            raise ValueError(f"Allocator stats not available for device {device!r}")
        self.asked += 1
        return {"current": 10 * self.asked, "peak": 1000 + self.asked}


STARTED = SimpleNamespace(_initialized=True)


@pytest.fixture(autouse=True)
def _own_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training_notes._record, "memory", {})


def _tensorflow(
    monkeypatch: pytest.MonkeyPatch, *devices: str, context: SimpleNamespace | None = STARTED
) -> _Counts:
    module = ModuleType("tensorflow")
    counts = _Counts(devices)
    module.config = counts  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    eager = ModuleType("tensorflow.python.eager.context")
    eager.context_safe = lambda: context  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, eager.__name__, eager)
    return counts


def test_a_device_that_counts_is_asked_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    _tensorflow(monkeypatch, "GPU:0")
    watch = MemoryWatch()
    for step in (5, 6):
        assert watch.step_begins(step) is False
        assert watch.step_ended(step) is False
    # the first question finds out whether it counts
    assert training_notes.seen("memory") == {"GPU:0": [[5, 20, 1002], [6, 30, 1003]]}


def test_long_trainings_leave_a_bounded_number_of_evenly_spaced_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = _tensorflow(monkeypatch, "GPU:0", "CPU:0")
    watch = MemoryWatch()
    for step in range(10_000):
        watch.step_ended(step)
    samples = training_notes.seen("memory")
    assert set(samples) == {"GPU:0", "CPU:0"}
    steps = [step for step, _, _ in samples["GPU:0"]]
    assert 32 <= len(steps) <= 64
    assert {two - one for one, two in pairwise(steps)} == {256}
    assert counts.asked < 1000


def test_where_no_device_counts_nobody_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = _tensorflow(monkeypatch)
    assert MemoryWatch().step_ended(0) is True
    assert (counts.asked, training_notes.seen("memory")) == (0, {})


@pytest.mark.parametrize("context", [None, SimpleNamespace(_initialized=False)])
def test_tensorflow_is_not_started_to_be_asked(
    monkeypatch: pytest.MonkeyPatch, context: SimpleNamespace | None
) -> None:
    counts = _tensorflow(monkeypatch, "GPU:0", context=context)
    watch = MemoryWatch()
    assert watch.step_ended(0) is False  # it may be later
    assert (counts.asked, training_notes.seen("memory")) == (0, {})
    _tensorflow(monkeypatch, "GPU:0")
    watch.step_ended(1)
    assert list(training_notes.seen("memory")) == ["GPU:0"]


def test_a_training_without_tensorflow_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert MemoryWatch().step_ended(0) is True
    assert training_notes.seen("memory") == {}
