"""Whether ranks train one model, from what each noted of its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcprof.analyses import weights
from hpcprof.analyses.weights import WeightAgreement, weight_agreement
from hpcprof.annotate import guards_digests
from tests.unit.results_builder import results
from tests.unit.trainings import Variable, gradient, start, trained, with_training

pytestmark = pytest.mark.unit

RATES = (1e-1, 1e-3, 1e-5)


def agreement(noted: Any, ranks: int = 4) -> WeightAgreement:
    return weight_agreement(with_training(results(ranks), checksums=noted).ranks)


def mean_gradient(step: int, *_: Any) -> Any:
    return np.mean([gradient(rank, step) for rank in range(4)], axis=0, dtype=np.float32)


@pytest.mark.parametrize("rate", RATES)
def test_ranks_that_average_their_gradients_are_alike(rate: float) -> None:
    found = agreement(trained(start(), lambda step, _: -rate * mean_gradient(step)))
    assert (found.state, found.ranks, found.steps) == ("alike", (0, 1, 2, 3), (1, 4, 49))
    assert (found.variable, found.first_differs, found.changed) == ("dense/kernel:0", False, True)


@pytest.mark.parametrize("rate", RATES)
def test_ranks_that_take_their_own_gradients_go_apart(rate: float) -> None:
    found = agreement(
        lambda rank: trained(start(), lambda step, _: np.float32(-rate) * gradient(rank, step))
    )
    assert (found.state, found.changed, found.first_differs) == ("apart", True, True)


@pytest.mark.parametrize("rate", RATES)
def test_ranks_that_started_apart_and_average_are_shifted(rate: float) -> None:
    found = agreement(
        lambda rank: trained(start(rank), lambda step, _: np.float32(-rate) * mean_gradient(step))
    )
    assert (found.state, found.first_differs) == ("shifted", True)


def test_a_mean_that_is_rounded_otherwise_on_one_rank_sets_nobody_apart() -> None:
    def update(rank: int, step: int) -> Any:
        order = range(4) if rank else reversed(range(4))
        total = np.zeros((16, 8), np.float32)
        for each in order:
            total = total + gradient(each, step)
        return np.float32(-0.01) * (total / np.float32(4))

    noted = [trained(start(), lambda step, _, rank=rank: update(rank, step)) for rank in range(4)]
    assert len({rows[-1][2].split()[0] for rows in noted}) == 2, "nothing was rounded otherwise"
    assert agreement(lambda rank: noted[rank]).state == "alike"


def test_one_look_tells_that_they_differ_and_not_why() -> None:
    found = agreement(lambda rank: trained(start(rank), lambda step, w: 0 * w, looks=(1,)))
    assert (found.state, found.steps, found.changed) == ("different", (1,), False)


def test_weights_that_nobody_changes_are_no_training() -> None:
    found = agreement(lambda rank: trained(start(rank), lambda step, w: 0 * w))
    assert (found.state, found.changed) == ("shifted", False)


def test_only_what_every_rank_noted_is_compared() -> None:
    both = trained(start(), lambda step, _: -0.1 * gradient(0, step))
    found = agreement(lambda rank: both if rank else both[:2])
    assert (found.state, found.steps) == ("alike", (1, 4))
    other = trained(start(9), lambda step, w: 0 * w, name="other:0")
    assert agreement(lambda rank: both if rank else other).state == weights.UNKNOWN


def test_the_variable_that_goes_apart_decides() -> None:
    shared = trained(start(), lambda step, _: -0.1 * mean_gradient(step), name="a:0")
    found = agreement(
        lambda rank: (*shared, *trained(start(), lambda s, _: -0.1 * gradient(rank, s), name="b:0"))
    )
    assert (found.state, found.variable) == ("apart", "b:0")


@pytest.mark.parametrize(
    "noted",
    [
        (),
        ((1, "a:0", "digest 1 2 3"),),
        ((1, "a:0", "digest nan nan nan nan nan"),),
        ((1, "a", ""),),
    ],
)
def test_nothing_that_can_be_compared_is_not_known(noted: Any) -> None:
    assert agreement(noted) == WeightAgreement("unknown")


def test_a_single_rank_has_nobody_to_differ_from() -> None:
    noted = trained(start(), lambda step, _: -0.1 * gradient(0, step))
    assert agreement(noted, ranks=1).state == "unknown"


def test_small_matrices_are_looked_at_and_one_bias() -> None:
    sizes: list[tuple[str, tuple[int, ...], str]] = [
        ("huge", (2000, 2000), "float32"),
        ("large", (512, 512), "float32"),
        ("head", (512, 10), "float32"),
        ("bias", (10,), "float32"),
        ("longer", (512,), "float32"),
        ("half", (2, 2), "float16"),
        ("count", (1, 1), "int64"),
        ("empty", (0, 4), "float32"),
    ]
    variables = [Variable(np.zeros(shape, kind), name) for name, shape, kind in sizes]
    assert [each.name for each in guards_digests.chosen(variables)] == ["head", "large", "bias"]


def test_a_large_variable_is_noted_by_some_of_its_values() -> None:
    values = np.random.default_rng(1).normal(size=(1000, 1000)).astype(np.float32)
    text = guards_digests.weight_sum(Variable(values))
    assert text == guards_digests.weight_sum(Variable(values.copy()))
    assert text != guards_digests.weight_sum(Variable(values + np.float32(1e-3)))


BATCH = np.arange(40_000, dtype=np.float32).reshape(100, 400)


@pytest.mark.parametrize(
    "element",
    [
        BATCH,
        (BATCH,),
        {"image": BATCH},
        [None, (BATCH,)],
        np.concatenate([BATCH, BATCH]),  # what comes after 64 KiB does not count
    ],
)
def test_a_batch_is_known_by_the_head_of_its_arrays(element: Any) -> None:
    assert guards_digests.batch_digest(element) == guards_digests.batch_digest(BATCH)
    assert guards_digests.batch_digest(BATCH + 1) != guards_digests.batch_digest(BATCH)


def test_batches_that_share_only_their_number_are_others() -> None:
    number = np.int64(7)  # as Dataset.enumerate gives it, on every rank
    one, other = ((number, (each, np.zeros(3))) for each in (BATCH, BATCH + 1))
    assert guards_digests.batch_digest(one) != guards_digests.batch_digest(other)


class Foreign:
    """A tensor of another framework, on a device that TensorFlow does not know."""

    dtype, shape, device, itemsize = "float32", (100, 400), "cuda:0", 4

    def numpy(self) -> Any:
        raise AssertionError("read to the host")

    ravel = numpy


@pytest.mark.parametrize("element", [None, (), {}, "text", [[], ()], Foreign()])
def test_a_batch_without_an_array_has_no_digest(element: Any) -> None:
    assert guards_digests.batch_digest(element) == ""
