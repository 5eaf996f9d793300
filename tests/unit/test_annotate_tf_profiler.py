"""When the window of tf.profiler opens, and what is said where it never does; no TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.artifacts import rank_env
from tests.unit import annotated

pytestmark = pytest.mark.unit

THREE_STEPS = """
for number in {numbers}:
    with annotate.step(number):
        pass
print("trained")
"""


def _notes(folder: Path, window: str, numbers: list[int]) -> list[str]:
    """What is noted of a training with these steps; it always runs to its end."""
    folder.mkdir()
    state = folder / "state"
    code = THREE_STEPS.format(numbers=numbers)
    done = annotated.run(code, folder, state, **{rank_env.TF_STEPS: window})
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert sorted(annotated.steps(folder)) == numbers
    return annotated.notes(state)


def test_a_training_without_tensorflow_is_told_and_goes_on(tmp_path: Path) -> None:
    notes = _notes(tmp_path / "rank", "1-2", [0, 1, 2])
    assert notes == [
        "tf.profiler: no step of 1-2 was recorded: the training does not use TensorFlow"
    ]


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ([0, 1], "the training ended at 1"),
        ([0, 9], "the first step from 5 on was 9"),
    ],
)
def test_a_window_that_no_step_falls_into_is_told(
    tmp_path: Path, numbers: list[int], why: str
) -> None:
    notes = _notes(tmp_path / "rank", "5-7", numbers)
    assert notes == [f"tf.profiler: no step of 5-7 was recorded: {why}"]


def test_a_window_that_cannot_be_read_is_told_and_a_missing_one_is_not(tmp_path: Path) -> None:
    notes = _notes(tmp_path / "one", "five", [0])
    assert len(notes) == 1 and "tf.profiler: no steps are recorded: HPCPROF_TF_STEPS" in notes[0]
    assert _notes(tmp_path / "other", "", [0]) == []
