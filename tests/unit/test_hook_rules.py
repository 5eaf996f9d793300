"""Rules about what the hooks saw of the training: each fires, and each stays quiet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcprof.annotate.hooks import registry
from hpcprof.artifacts import manifest
from hpcprof.findings import find
from hpcprof.findings.hook_rules import (
    eager_training,
    extra_callbacks,
    hooks_failed,
    retracing,
    tensorboard_profiles,
)
from hpcprof.trace.model import SourceState
from tests.unit.results_builder import results
from tests.unit.trainings import with_training

pytestmark = pytest.mark.unit

RULES = {
    *("retracing", "eager-training", "tensorboard-profiles"),
    *("extra-callbacks", "hooks-failed"),
}


def run(**fields: Any) -> Any:
    return with_training(results(), **fields)


def test_a_healthy_training_raises_none_of_them() -> None:
    built = run(
        hooks={"keras": "attached", "horovod": "attached"},
        traces={"train_function": 2},
        callbacks=lambda rank: ("History",) if rank else ("History", "ModelCheckpoint"),
        eager_steps=1,
        tf_steps="30-39",
    )
    assert [f.rule for f in find(built) if f.rule in RULES] == []


def test_a_function_that_is_traced_for_every_other_batch_is_told() -> None:
    traces = {"train_step": 30, "evaluate": 2}
    built = run(traces=lambda rank: traces if rank == 2 else {"train_step": 2})
    (found,) = retracing(built)
    assert (found.level, found.ranks, found.nodes) == ("warn", (2,), ("node1",))
    assert found.message == (
        "train_step was traced up to 30 times in 61 steps on rank 2; each trace takes as long as "
        "many steps, and the other ranks wait for it"
    )
    assert "drop_remainder=True" in found.advice


@pytest.mark.parametrize(
    ("traces", "steps", "fires"),
    [(5, 60, False), (6, 60, True), (6, 300, False), (7, 300, True), (6, 0, False)],
)
def test_a_few_traces_of_a_long_run_are_usual(traces: int, steps: int, fires: bool) -> None:
    built = run(traces={"f": traces}, steps=steps)
    for info in built.ranks:
        info.sources.clear()
    assert bool(list(retracing(built))) is fires


@pytest.mark.parametrize(("eager", "fires"), [(61, True), (31, True), (30, False), (0, False)])
def test_a_training_whose_updates_are_mostly_eager_is_told(eager: int, fires: bool) -> None:
    found = list(eager_training(run(eager_steps=lambda rank: eager if rank == 1 else 0)))
    assert [(f.level, f.ranks) for f in found] == ([("warn", (1,))] if fires else [])


def test_a_few_eager_updates_of_a_short_run_are_not_told() -> None:
    built = run(eager_steps=4, steps=4)
    for info in built.ranks:
        info.sources.clear()
    assert list(eager_training(built)) == []


def test_tensorboard_and_nsys_do_not_go_together() -> None:
    (found,) = tensorboard_profiles(run(profile_batch=lambda rank: None if rank else "2,2"))
    assert (found.level, found.ranks) == ("warn", (0,))
    assert found.message == (
        "TensorBoard's callback profiles (profile_batch 2,2) on rank 0, and nsys recorded them "
        "too: only one of the two may trace CUDA in a process, the other lacks what the GPU did"
    )


def without_nsys(built: Any) -> Any:
    for info in built.ranks:
        info.sources["nsys"] = SourceState("nsys", manifest.NOT_PROFILED)
    return built


def test_tensorboard_and_our_own_recording_do_not_either() -> None:
    built = without_nsys(run(profile_batch="2,2", tf_steps=lambda r: None if r else "30-39"))
    (found,) = tensorboard_profiles(built)
    assert found.ranks == (0,)
    assert "tf.profiler" in found.message


def test_tensorboard_that_meets_nobody_is_not_told() -> None:
    assert list(tensorboard_profiles(without_nsys(run(profile_batch="2,2")))) == []
    assert list(tensorboard_profiles(run())) == []
    no_gpu = run(profile_batch="2,2")
    no_gpu = replace(no_gpu, ranks=tuple(replace(info, gpus=()) for info in no_gpu.ranks))
    assert list(tensorboard_profiles(no_gpu)) == []


def late_rank(callbacks: Any) -> Any:
    built = results(extra_ms={(2, "host"): 40.0})
    assert [found.ranks for found in built.stragglers.found] == [(2,)]
    return with_training(built, callbacks=callbacks)


def test_callbacks_that_only_the_late_rank_runs_are_told() -> None:
    built = late_rank(lambda rank: ("History", "ModelCheckpoint") if rank == 2 else ("History",))
    (found,) = extra_callbacks(built)
    assert (found.level, found.ranks, found.nodes) == ("info", (2,), ("node1",))
    assert found.message == (
        "rank 2, for which the others wait, runs callbacks that no other rank runs: ModelCheckpoint"
    )


@pytest.mark.parametrize(
    "callbacks",
    [
        ("History", "ModelCheckpoint"),
        lambda rank: ("History", "ModelCheckpoint") if rank == 0 else ("History",),
        lambda rank: ("History", "ModelCheckpoint") if rank == 2 else (),
        (),
    ],
)
def test_callbacks_of_ranks_that_nobody_waits_for_are_not_told(callbacks: Any) -> None:
    assert list(extra_callbacks(late_rank(callbacks))) == []


def test_hooks_that_failed_are_told_once_for_the_job() -> None:
    hooks = {"keras": "attached", "iterators": "failed: no OwnedIterator", "tape": "failed: gone"}
    built = run(hooks=lambda rank: hooks if rank else {"keras": "attached", "tape": "failed"})
    (found,) = hooks_failed(built)
    assert (found.level, found.status, found.ranks) == ("info", "not_collected", (0, 1, 2, 3))
    assert found.message == (
        "the wait for a batch in loops over tf.data; what tape shows: not measured on ranks 0-3, "
        "because hpcprof could not attach to this version"
    )
    assert found.evidence == (
        "hook iterators on ranks 1-3: no OwnedIterator",
        "hook tape on ranks 1-3: gone",
        "hook tape on rank 0: unknown why",
    )


def test_every_hook_says_what_is_not_known_without_it() -> None:
    names = {hook.name for hook in registry.HOOKS} | {"all"}
    for name in sorted(names):
        (found,) = hooks_failed(run(hooks={name: "failed: gone"}))
        assert f"what {name} shows" not in found.message


def test_what_hooks_warned_of_is_told() -> None:
    built = run(warnings=lambda rank: ("train makes several updates in one call",) * (rank < 2))
    (found,) = [f for f in find(built) if f.rule == "recording-incomplete"]
    assert (found.level, found.ranks) == ("info", (0, 1))
    assert found.message == "ranks 0-1: train makes several updates in one call"
