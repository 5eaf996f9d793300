"""When guards look at weights, what they say, and what they leave alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcprof.annotate import guards, horovod_calls, training_notes
from hpcprof.artifacts import rank_env
from hpcprof.artifacts.training_record import new_training_record
from tests.unit.trainings import Variable

pytestmark = pytest.mark.unit


class Ranks(SimpleNamespace):
    """The part of Horovod that says who a rank is."""


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rank 0 of two, whose hooks count Horovod's calls and saw one variable; its folder."""
    for name in (rank_env.WINDOW, rank_env.OP_STEPS, rank_env.TF_STEPS, rank_env.HOOKS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(rank_env.RANK_FOLDER, str(tmp_path))
    monkeypatch.setenv(rank_env.RANK, "0")
    horovod = Ranks(size=lambda: 2, rank=lambda: 0)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", horovod)
    monkeypatch.setattr(horovod_calls, "_counts", None)
    monkeypatch.setattr(horovod_calls, "_last_known", None)
    monkeypatch.setattr(training_notes, "_record", new_training_record())
    monkeypatch.setattr(training_notes, "_is_written", False)
    monkeypatch.setattr(guards, "_variables", [])
    monkeypatch.setattr(guards, "_is_done_looking", False)
    monkeypatch.setattr(guards, "_first_batches", [])
    horovod_calls.begin_counting()
    guards.saw_variables([Variable(np.ones((2, 2), np.float32), "kernel")])
    return tmp_path


def run_steps(count: int, first: int = 0) -> list[int]:
    """The steps after which weights were noted."""
    follower = guards.wanted()
    assert follower is not None
    for number in range(first, first + count):
        assert not follower.step_begins(number)
        assert not follower.step_ended(number)
    follower.close(first + count - 1)
    return [each["step"] for each in training_notes.seen("checksums")]


def test_weights_are_noted_after_the_second_fifth_and_fiftieth_step(rank: Path) -> None:
    assert run_steps(60) == [1, 4, 49]
    assert (rank / "training.json").exists()


def test_steps_are_counted_from_the_first_that_this_process_makes(rank: Path) -> None:
    assert run_steps(60, first=1000) == [1001, 1004, 1049]


@pytest.mark.parametrize(
    ("windows", "looks"),
    [
        ({rank_env.OP_STEPS: "10-29", rank_env.TF_STEPS: "30-39"}, [1, 4, 49]),
        # not in a window, and not just before its first step either
        ({rank_env.WINDOW: "2-6,cuda"}, [7, 49]),
        ({rank_env.WINDOW: "0-9,host", rank_env.OP_STEPS: "40-54"}, [10, 55]),
        ({rank_env.OP_STEPS: "none"}, [1, 4, 49]),
    ],
)
def test_no_weights_are_read_while_a_profiler_records(
    rank: Path, monkeypatch: pytest.MonkeyPatch, windows: dict[str, str], looks: list[int]
) -> None:
    for name, text in windows.items():
        monkeypatch.setenv(name, text)
    assert run_steps(70) == looks


@pytest.mark.parametrize("size", [1, None])
def test_no_weights_are_read_where_horovod_connects_nobody(
    rank: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    horovod = Ranks() if size is None else Ranks(size=lambda: size, rank=lambda: 0)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", horovod)
    assert run_steps(60) == []
    assert not (rank / "training.json").exists()
    assert (training_notes.seen("horovod") is None) == (size is None)


def test_memory_of_the_training_is_let_go_after_the_last_look(rank: Path) -> None:
    run_steps(50)
    assert guards._variables == []
    guards.saw_variables([Variable(np.ones((2, 2), np.float32))])
    assert guards._variables == []


def test_a_variable_that_cannot_be_read_ends_the_looking(
    rank: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Deleted(Variable):
        def numpy(self) -> Any:
            raise RuntimeError("this variable was deleted")

    monkeypatch.setenv(rank_env.STATE_FOLDER, str(tmp_path))
    monkeypatch.setattr(guards, "_variables", [Deleted(np.ones((2, 2), np.float32))])
    assert run_steps(60) == []
    (note,) = (tmp_path / "annotate-error").read_text().splitlines()
    assert note.startswith("the weights of this rank are not compared with others: ")
    assert "this variable was deleted" in note


def test_nobody_looks_where_hooks_are_off(rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rank_env.HOOKS, "0")
    assert guards.wanted() is None


def said(capfd: pytest.CaptureFixture[str]) -> str:
    run_steps(4)
    assert capfd.readouterr().err == ""
    run_steps(60)
    return capfd.readouterr().err


def test_a_rank_that_averages_nothing_says_so_once_after_five_steps(
    rank: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = said(capfd)
    assert text.startswith("hpcprof: rank 0: NO_GRADIENT_SYNC: 5 steps are over and Horovod was ")
    assert text.count("NO_GRADIENT_SYNC") == 1
    assert "unless the script averages by other means" in text
    assert "hvd.DistributedOptimizer" in text


@pytest.mark.parametrize(
    "count", [horovod_calls.GRADIENTS, horovod_calls.ALLREDUCES, horovod_calls.GATHERS]
)
def test_a_rank_that_exchanges_anything_says_nothing(
    rank: Path, capfd: pytest.CaptureFixture[str], count: str
) -> None:
    horovod_calls.count(count)
    assert said(capfd) == ""


def test_the_mean_of_a_loss_is_no_gradient(rank: Path, capfd: pytest.CaptureFixture[str]) -> None:
    horovod_calls.count(horovod_calls.SCALARS)
    assert "NO_GRADIENT_SYNC" in said(capfd)


def test_only_the_first_rank_speaks(
    rank: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", Ranks(size=lambda: 2, rank=lambda: 1))
    assert said(capfd) == ""


def test_calls_that_nobody_counts_and_an_evaluation_say_nothing(
    rank: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "_variables", [])
    assert said(capfd) == ""
    guards.saw_variables([Variable(np.ones((2, 2), np.float32))])
    monkeypatch.setattr(horovod_calls, "_counts", None)
    assert said(capfd) == ""


def test_keras_3_is_told_what_to_do(
    rank: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.15.1"))
    assert "set TF_USE_LEGACY_KERAS=1" in said(capfd)
    monkeypatch.setitem(sys.modules, "tf_keras", SimpleNamespace(__version__="2.17.0"))
    assert "TF_USE_LEGACY_KERAS" not in said(capfd)


def test_three_batches_are_noted_and_no_more(rank: Path) -> None:
    for value in range(4):
        guards.saw_batch((np.full(4, value, np.float32), "label"))
    digests = training_notes.seen("first_batches")
    assert (len(digests), len(set(digests))) == (3, 3)


def test_a_batch_that_cannot_be_read_means_that_none_are_compared(rank: Path) -> None:
    guards.saw_batch(None)
    for value in range(4):
        guards.saw_batch(np.full(4, value, np.float32))
    assert training_notes.seen("first_batches") == []


def test_settings_are_noted_with_the_defaults_of_the_known_version(
    rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3.5")
    monkeypatch.delenv("HOROVOD_FUSION_THRESHOLD", raising=False)
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(__version__="0.28.1"))
    settings = (horovod_calls.description() or {})["settings"]
    assert settings["HOROVOD_CYCLE_TIME"] == "3.5"
    assert settings["HOROVOD_FUSION_THRESHOLD"] == "134217728 (default)"
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(__version__="0.99"))
    assert (horovod_calls.description() or {})["settings"] == {"HOROVOD_CYCLE_TIME": "3.5"}


def test_a_horovod_that_ended_before_us_is_still_told(
    rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = guards.wanted()
    assert follower is not None
    for number in range(3):
        follower.step_ended(number)
    horovod_calls.count(horovod_calls.ALLREDUCES, 7)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", Ranks())
    follower.close(2)
    horovod = training_notes.seen("horovod")
    assert (horovod["size"], horovod["allreduces"]) == (2, 7)
