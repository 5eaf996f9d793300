"""Rules about ranks that are meant to train one model: each fires, and each stays quiet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcprof.artifacts import manifest
from hpcprof.findings import find
from hpcprof.findings.healthy import healthy
from hpcprof.findings.one_model_rules import (
    batch_size_differs,
    no_broadcast,
    no_gradient_sync,
    same_input_shard,
    step_count_differs,
)
from hpcprof.trace.model import SourceState
from tests.unit.results_builder import results
from tests.unit.trainings import gradient, horovod, start, trained, with_training

pytestmark = pytest.mark.unit

RULES = (no_gradient_sync, no_broadcast, same_input_shard, batch_size_differs, step_count_differs)


def averaged(step: int, *_: Any) -> Any:
    return np.float32(-0.01) * np.mean([gradient(r, step) for r in range(4)], axis=0)


ALIKE = trained(start(), averaged)
SHIFTED = [trained(start(rank), averaged) for rank in range(4)]
APART = [
    trained(start(), lambda step, _, rank=rank: np.float32(-0.01) * gradient(rank, step))
    for rank in range(4)
]
SYNCED = horovod(gradients=8, broadcasts=4, optimizers=1)
SILENT = horovod(optimizers=1)


def run(**fields: Any) -> Any:
    return with_training(results(), **fields)


def ids(findings: Any) -> list[tuple[str, str, str]]:
    return [(f.rule, f.level, f.status) for f in findings]


def of_these(built: Any) -> list[tuple[str, str, str]]:
    return ids(f for rule in RULES for f in rule(built))


def test_a_healthy_horovod_training_raises_nothing_and_is_said_to_be_one_model() -> None:
    built = run(
        horovod=SYNCED,
        checksums=ALIKE,
        batch_size=32,
        first_batches=lambda rank: tuple(f"{rank}-{n}" for n in range(3)),
    )
    assert of_these(built) == []
    assert "one model: dense/kernel:0 is alike on all 4 ranks after steps 1, 4, 49" in healthy(
        built, find(built)
    )


def test_ranks_that_go_apart_without_any_allreduce_train_models_of_their_own() -> None:
    built = run(horovod=SILENT, checksums=lambda rank: APART[rank], versions={"keras": "3.15.1"})
    (found,) = no_gradient_sync(built)
    assert (found.level, found.status, found.ranks) == ("critical", "ok", (0, 1, 2, 3))
    assert (found.nodes, found.steps, found.cause) == (("node0", "node1"), (1, 49), "horovod")
    assert found.message == (
        "ranks 0-3 train models of their own: Horovod was given no gradient to average, and the "
        "weights of dense/kernel:0 differ between ranks after steps 1, 4, 49"
    )
    assert "TF_USE_LEGACY_KERAS=1" in found.advice
    assert "0 gradients, 0 other reductions" in found.evidence[0]
    assert not any("one model" in text for text in healthy(built, find(built)))


def test_the_advice_for_keras_2_is_to_wrap_the_optimizer() -> None:
    silent = horovod()
    (found,) = no_gradient_sync(run(horovod=silent, checksums=lambda rank: APART[rank]))
    assert "optimizer = hvd.DistributedOptimizer(optimizer)" in found.advice


def test_tf_keras_beside_keras_3_is_keras_2() -> None:
    versions = {"keras": "3.15.1", "tf_keras": "2.17.0"}
    built = run(horovod=SILENT, checksums=lambda rank: APART[rank], versions=versions)
    (found,) = no_gradient_sync(built)
    assert "optimizer = hvd.DistributedOptimizer(optimizer)" in found.advice


def test_metrics_that_are_averaged_are_no_gradients_but_leave_a_doubt() -> None:
    metrics = horovod(optimizers=1, allreduces=3)
    (found,) = no_gradient_sync(run(horovod=metrics, checksums=lambda rank: APART[rank]))
    assert (found.level, found.status) == ("warn", "ok")
    scalars = horovod(optimizers=1, scalars=3)
    (found,) = no_gradient_sync(run(horovod=scalars, checksums=lambda rank: APART[rank]))
    assert found.level == "critical"


def test_calls_that_nobody_counted_leave_a_doubt_too() -> None:
    (found,) = no_gradient_sync(run(horovod={"size": 4}, checksums=lambda rank: APART[rank]))
    assert found.level == "warn"
    assert "Horovod's calls were not counted" in found.message
    assert list(no_gradient_sync(run(horovod={"size": 4}, checksums=ALIKE))) == []


@pytest.mark.parametrize(
    "fields",
    [
        # averaged by hand, with Horovod or with another library
        {"horovod": horovod(allreduces=4), "checksums": ALIKE},
        {"horovod": SILENT, "checksums": ALIKE},
        {"horovod": horovod(gathers=4, tapes=1), "checksums": lambda rank: SHIFTED[rank]},
        # its gradients are averaged; what differs is a layer of each rank's own
        {"horovod": SYNCED, "checksums": lambda rank: APART[rank]},
        # alone, or without Horovod
        {"horovod": horovod(size=1), "checksums": lambda rank: APART[rank]},
        {"horovod": None, "checksums": lambda rank: APART[rank]},
        # nothing is trained
        {
            "horovod": SILENT,
            "checksums": lambda rank: trained(start(rank), lambda step, w: 0 * w),
        },
    ],
)
def test_ranks_that_share_a_model_or_need_not_are_not_accused(fields: Any) -> None:
    assert list(no_gradient_sync(run(**fields))) == []


def test_no_allreduce_and_no_weights_is_a_doubt_that_is_told() -> None:
    (found,) = no_gradient_sync(run(horovod=SILENT))
    assert (found.level, found.status) == ("warn", "insufficient")
    assert found.message.startswith("61 steps and Horovod was given no gradient to average")
    # an evaluation, perhaps: no optimizer was wrapped
    assert list(no_gradient_sync(run(horovod=horovod()))) == []


def test_equal_weights_prove_nothing_where_the_data_are_equal_too() -> None:
    same = {"horovod": SILENT, "checksums": ALIKE, "first_batches": ("a", "b", "c")}
    (found,) = no_gradient_sync(run(**same))
    assert (found.level, found.status) == ("warn", "insufficient")
    assert found.evidence == ("the ranks' weights are alike, but so is the data they were given",)
    own = {**same, "first_batches": lambda rank: (str(rank), "b", "c")}
    assert list(no_gradient_sync(run(**own))) == []


def test_averaged_gradients_on_weights_that_were_never_broadcast() -> None:
    built = run(horovod=horovod(gradients=8, tapes=1), checksums=lambda rank: SHIFTED[rank])
    (found,) = no_broadcast(built)
    assert (found.level, found.ranks) == ("critical", (0, 1, 2, 3))
    assert found.message == (
        "the 4 ranks average their gradients and add them to different weights: dense/kernel:0 "
        "differs between ranks 0-3 after steps 1, 4, 49, and nothing was broadcast"
    )
    assert "hvd.broadcast_variables(model.variables, root_rank=0)" in found.advice
    (found,) = no_broadcast(with_training(built, versions={"keras": "3.15.1"}))
    assert "hvd.broadcast_variables([v.value for v in model.variables]" in found.advice


@pytest.mark.parametrize(
    ("counts", "noted"),
    [
        (horovod(gradients=8, broadcasts=4), lambda rank: SHIFTED[rank]),
        (horovod(gradients=8), ALIKE),  # a common seed
        (horovod(), lambda rank: SHIFTED[rank]),
        ({"size": 4}, lambda rank: SHIFTED[rank]),
        (None, lambda rank: SHIFTED[rank]),
        (horovod(gradients=8), ()),
    ],
)
def test_weights_that_are_sent_alike_or_unknown_are_no_missing_broadcast(
    counts: Any, noted: Any
) -> None:
    assert list(no_broadcast(run(horovod=counts, checksums=noted))) == []


def test_ranks_that_get_the_same_batches_are_told_which() -> None:
    batches = {0: ("a", "b", "c"), 1: ("a", "b", "c"), 2: ("a", "b", "d"), 3: ()}
    (found,) = same_input_shard(run(horovod=SYNCED, first_batches=lambda rank: batches[rank]))
    assert (found.level, found.ranks, found.nodes) == ("warn", (0, 1), ("node0",))
    assert found.message == (
        "ranks 0-1 were given the same batches: the first 3 are equal, so that each sample is "
        "computed 2 times"
    )
    assert "dataset.shard(hvd.size(), hvd.rank())" in found.advice


@pytest.mark.parametrize(
    ("counts", "batches"),
    [
        (SYNCED, ("a", "a", "a")),  # constant data
        (SYNCED, ("a", "b", "a")),  # a data set of two batches
        (SYNCED, ("a", "b")),
        (SYNCED, ()),
        (None, ("a", "b", "c")),  # each rank for itself
    ],
)
def test_batches_that_say_nothing_accuse_nobody(counts: Any, batches: Any) -> None:
    assert list(same_input_shard(run(horovod=counts, first_batches=batches))) == []


def test_the_ranks_of_another_strategy_share_a_model_too() -> None:
    built = run(first_batches=("a", "b", "c"))
    built = replace(built, job=replace(built.job, strategy="multiworker"))
    assert ids(same_input_shard(built)) == [("same-input-shard", "warn", "ok")]


def test_a_rank_with_smaller_batches_is_named() -> None:
    built = run(horovod=SYNCED, batch_size=lambda rank: 16 if rank == 3 else 32)
    (found,) = batch_size_differs(built)
    assert (found.level, found.ranks, found.nodes) == ("warn", (3,), ("node1",))
    assert found.message == ("the first batch had 32 samples on ranks 0-2, 16 samples on rank 3")


@pytest.mark.parametrize(
    ("counts", "size"),
    [
        (SYNCED, 32),
        (SYNCED, lambda rank: 32 if rank else None),
        (None, lambda rank: 16 + rank),
    ],
)
def test_batches_of_one_size_or_of_ranks_apart_are_no_finding(counts: Any, size: Any) -> None:
    assert list(batch_size_differs(run(horovod=counts, batch_size=size))) == []


def ending(last: dict[int, int], **fields: Any) -> Any:
    built = run(horovod=SYNCED)
    for info in built.ranks:
        info.sources["spans"] = replace(
            info.sources["spans"], **{"last_step": last.get(info.rank, 60), **fields}
        )
    return built


def test_ranks_that_end_well_after_different_steps_are_told() -> None:
    (found,) = step_count_differs(ending({3: 57}))
    assert (found.level, found.ranks) == ("info", (3,))
    assert found.message == "the ranks ended after different steps: 57 on rank 3, 60 on ranks 0-2"


def test_steps_of_a_job_that_did_not_end_by_itself_say_nothing() -> None:
    built = ending({3: 57})
    killed = tuple(replace(info, exit_code=137 if info.rank == 3 else 0) for info in built.ranks)
    assert list(step_count_differs(replace(built, ranks=killed))) == []
    assert list(step_count_differs(replace(built, missing=(4,)))) == []
    assert list(step_count_differs(ending({}))) == []
    assert list(step_count_differs(ending({3: 57}, state=manifest.PARTIAL))) == []
    lost = ending({3: 57})
    lost.ranks[3].sources["spans"] = SourceState("spans", manifest.LOST, "the disk was full")
    assert list(step_count_differs(lost)) == []


def test_a_run_without_hooks_raises_none_of_them() -> None:
    assert of_these(results()) == []
    assert not any("one model" in text for text in healthy(results(), []))
