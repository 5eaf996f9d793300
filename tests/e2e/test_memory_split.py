"""The memory of real trainings, divided: against the allocator, and against what is known of them.

On a CPU with the allocator that GPUs have (TF_CPU_ALLOCATOR_USE_BFC).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcprof.analyses import memory_split as m
from tests.e2e.memory_programs import Split, split

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CNN = [16, 32, 64]  # filters, filters, units
# batch 32: conv_a gives 30×30×16, conv_b 14×14×32
Splits = Callable[[str], Split]


@pytest.fixture(scope="module")
def splits(
    tmp_path_factory: pytest.TempPathFactory, horovod_python: Path, tensorflow_python: Path
) -> Splits:
    """Each training runs at its first use."""
    keras2, keras3 = horovod_python, tensorflow_python
    wide, narrow = [64, 256, 256, 256], [64, 512, 128, 512]
    trainings = {
        "keras 2": lambda run: split(keras2, run, "cnn", CNN, batch=32, optimizer="adam"),
        "keras 3": lambda run: split(keras3, run, "cnn", CNN, batch=32, optimizer="adam"),
        "twice the batch": lambda run: split(keras3, run, "cnn", CNN, batch=64, optimizer="sgd"),
        "loop": lambda run: split(keras2, run, "mlp", wide, batch=4096, optimizer="adam"),
        "other loop": lambda run: split(keras3, run, "mlp", narrow, batch=2048, optimizer="adam"),
        "compiled": lambda run: split(
            keras3, run, "compiled mlp", wide, batch=4096, optimizer="adam"
        ),
        "late": lambda run: split(keras2, run, "cnn", CNN, batch=32, optimizer="adam", steps="2-4"),
    }

    @functools.cache
    def divide(name: str) -> Split:
        return trainings[name](tmp_path_factory.mktemp("memory") / "run")

    return divide


MODELS = ["keras 2", "keras 3", "loop"]


@pytest.mark.parametrize("model", MODELS)
def test_the_parts_are_the_allocators_own_peak(splits: Splits, model: str) -> None:
    found = splits(model).found
    assert (found.status, found.older_bytes) == (m.OK, 0)  # every block was seen to come
    assert sum(found.bytes_by_class.values()) == found.total_bytes
    assert found.total_bytes == pytest.approx(found.peak_bytes, rel=0.01)
    assert found.unclassified_frac < 0.05


@pytest.mark.parametrize("model", MODELS)
def test_weights_and_optimizer_state_are_what_the_training_says_of_them(
    splits: Splits, model: str
) -> None:
    found, weights, optimizer, _ = splits(model)
    assert found.bytes_by_class[m.WEIGHTS] == pytest.approx(weights, rel=0.01)
    assert found.bytes_by_class[m.OPTIMIZER_STATE] == pytest.approx(optimizer, rel=0.01)
    assert optimizer == pytest.approx(2 * weights, rel=0.01)  # Adam


def test_without_a_profiler_the_peak_is_known_after_every_step(splits: Splits) -> None:
    found, weights, optimizer, samples = splits("keras 2")
    assert [step for step, _, _ in samples] == [0, 1, 2, 3, 4, 5]
    assert [peak for _, _, peak in samples] == sorted(peak for _, _, peak in samples)
    assert samples[-1][2] == found.peak_bytes
    assert all(weights + optimizer < current < peak for _, current, peak in samples)


def test_twice_the_batch_doubles_feature_maps_and_leaves_weights(splits: Splits) -> None:
    one, two = splits("keras 3").found, splits("twice the batch").found
    assert two.bytes_by_class[m.FEATURE_MAPS] == pytest.approx(
        2 * one.bytes_by_class[m.FEATURE_MAPS], rel=0.05
    )
    assert two.bytes_by_class[m.WEIGHTS] == one.bytes_by_class[m.WEIGHTS] > 1_000_000


def test_without_adam_its_slots_are_gone(splits: Splits) -> None:
    with_adam, without = splits("keras 3"), splits("twice the batch")
    assert with_adam.found.bytes_by_class[m.OPTIMIZER_STATE] > 3_000_000
    # a counter and a learning rate
    assert without.found.bytes_by_class[m.OPTIMIZER_STATE] < 100


@pytest.mark.parametrize(
    ("model", "batch", "units"),
    [("loop", 4096, (256, 256, 256)), ("other loop", 2048, (512, 128, 512))],
)
def test_feature_maps_are_those_computed_by_hand(
    splits: Splits, model: str, batch: int, units: tuple[int, ...]
) -> None:
    found = splits(model).found
    # float32; bias and tanh work in the place of the product
    assert found.bytes_by_class[m.FEATURE_MAPS] == pytest.approx(batch * sum(units) * 4, rel=0.05)
    shown = [tensor.nbytes for tensor in found.largest if tensor.kind == m.FEATURE_MAPS]
    assert shown[:3] == sorted((batch * unit * 4 for unit in units), reverse=True)


def test_what_xla_compiled_is_said_not_to_be_known_and_the_variables_still_are(
    splits: Splits,
) -> None:
    found, weights, optimizer, _ = splits("compiled")
    assert sum(found.bytes_by_class.values()) == found.total_bytes
    assert found.unclassified_frac > 0.5
    assert found.bytes_by_class[m.FEATURE_MAPS] < 0.05 * found.total_bytes
    assert found.bytes_by_class[m.WEIGHTS] == pytest.approx(weights, rel=0.01)
    assert found.bytes_by_class[m.OPTIMIZER_STATE] == pytest.approx(optimizer, rel=0.01)


def test_a_recording_that_begins_late_finds_the_same_without_having_seen_the_variables(
    splits: Splits,
) -> None:
    late, weights, optimizer, _ = splits("late")
    whole = splits("keras 2").found
    assert (late.status, whole.status) == (m.OK, m.OK)
    assert late.older_bytes > weights + optimizer
    assert sum(late.bytes_by_class.values()) == late.total_bytes
    assert late.bytes_by_class[m.WEIGHTS] == pytest.approx(weights, rel=0.01)
    assert late.bytes_by_class[m.OPTIMIZER_STATE] == pytest.approx(optimizer, rel=0.01)
    assert late.bytes_by_class[m.FEATURE_MAPS] == pytest.approx(
        whole.bytes_by_class[m.FEATURE_MAPS], rel=0.05
    )
    assert late.unclassified_frac < 0.05
