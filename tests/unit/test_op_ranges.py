"""When TensorFlow is made to name its operations, and what is said where it cannot be.

That it does is tried with TensorFlow itself, in tests/e2e/test_op_ranges.py.
"""

from __future__ import annotations

import pytest

from hpcprof.annotate import op_ranges, training_notes
from hpcprof.artifacts import rank_env

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _nothing_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (rank_env.OP_STEPS, rank_env.NVTX, "NVTX_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    training_notes.put(op_steps=None)


def noted() -> object:
    return training_notes.seen("op_steps")


def test_nothing_is_done_or_said_where_nobody_asked() -> None:
    assert op_ranges.wanted() is None
    assert noted() is None


@pytest.mark.parametrize(
    "listener", [{rank_env.NVTX: "1"}, {"NVTX_INJECTION64_PATH": "/somewhere/library.so"}]
)
def test_operations_are_named_where_nsys_or_a_recorder_listens(
    monkeypatch: pytest.MonkeyPatch, listener: dict[str, str]
) -> None:
    monkeypatch.setenv(rank_env.OP_STEPS, "10-29")
    assert op_ranges.wanted() is None
    assert noted() == ("not available: nobody listens to NVTX on this rank (no nsys, no recorder)")
    for name, value in listener.items():
        monkeypatch.setenv(name, value)
    assert op_ranges.wanted() is not None


def test_a_range_that_makes_no_sense_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rank_env.OP_STEPS, "29-10")
    monkeypatch.setenv(rank_env.NVTX, "1")
    assert op_ranges.wanted() is None
    assert "HPCPROF_OP_STEPS: 29-10: the last step comes before the first" in str(noted())


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> op_ranges.Follower:
    monkeypatch.setenv(rank_env.OP_STEPS, "10-29")
    monkeypatch.setenv(rank_env.NVTX, "1")
    made = op_ranges.wanted()
    assert made is not None
    return made


def test_without_tensorflow_the_reason_is_noted_and_nothing_is_left_to_do(
    follower: op_ranges.Follower,
) -> None:
    assert not follower.step_begins(9)
    assert not follower.step_ended(9)
    assert follower.step_begins(10)
    assert noted() == "not available: TensorFlow is not loaded"


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (9, "no step of 10-29: the training ended at step 9"),
        (-1, "no step of 10-29: the training ended before its first step"),
    ],
)
def test_a_training_that_never_came_so_far_says_so(
    follower: op_ranges.Follower, last: int, said: str
) -> None:
    follower.close(last)
    assert noted() == f"not available: {said}"


def test_each_step_is_named_also_after_a_profiler_of_the_training_switched_it_off(
    follower: op_ranges.Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag: list[int] = []
    monkeypatch.setattr(op_ranges, "find_switch", lambda: flag.append)
    for number in range(9, 30):
        assert not follower.step_begins(number)
        assert (flag[-1:] == [1]) == (number >= 10)
        flag.append(0)  # as TensorFlow does at the end of a profile
        assert follower.step_ended(number) == (number == 29)
    assert noted() == "10-29"


def test_steps_that_jump_over_the_wanted_ones_are_noted(follower: op_ranges.Follower) -> None:
    assert follower.step_begins(30)
    assert noted() == "not available: no step of 10-29: the first step from 10 on was 30"
