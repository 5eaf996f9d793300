"""Loops that the user wrote, under the hooks, unmodified: TensorFlow 2.15 and 2.17."""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import median

import pytest

from hpcprof.artifacts import span_format
from tests.e2e import hooked_training
from tests.e2e.hooked_training import CASES, Case, Hooked

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TRAINING = (
    CASES
    + """
import threading
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.experimental.enable_op_determinism()

class Net:
    def __init__(self, with_optimizer=True):
        self.model = tf.keras.Sequential([tf.keras.layers.Dense(32, "relu"),
                                          tf.keras.layers.Dense(1)])
        self.model.build((None, 16))
        if with_optimizer:
            self.optimizer = tf.keras.optimizers.SGD(0.01)
            self.optimizer.build(self.weights)

    @property
    def weights(self):
        return self.model.trainable_variables

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
        return tape.gradient(loss, self.weights)

    def apply(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, self.weights))

    def update(self, x, y):
        self.apply(self.gradients(x, y))

    def learnt(self):
        return self.model.get_weights()

# the first case: no optimizer was ever made
@case("by_hand")
def _():
    net = Net(with_optimizer=False)
    # arguments may have any name, also one that a function around this one would like
    @tf.function
    def step(x, y, function):
        for weight, gradient in zip(net.weights, net.gradients(x, y)):
            weight.assign_sub(0.01 * gradient)
    for x, y in slow_data():
        step(x, y, function="by hand")
    return net.learnt()

@case("plain")
def _():
    net = Net()
    step = tf.function(net.update)
    @tf.function
    def double(x):
        return 2.0 * x
    @tf.function
    def evaluate(x, y):
        return tf.reduce_mean((net.model(x) - y) ** 2)
    for _ in range(2):
        for x, y in slow_data():
            step(double(x), y)
        for x, y in data().batch(32):
            evaluate(x, y)
        tf.train.Checkpoint(model=net.model).save("checkpoint")
    return net.learnt()

@case("accumulated")
def _():
    net = Net()
    gradients_of = tf.function(net.gradients)
    summed = None
    for number, (x, y) in enumerate(slow_data()):
        gradients = gradients_of(x, y)
        summed = gradients if number % 3 == 0 else [a + b for a, b in zip(summed, gradients)]
        if number % 3 == 2:
            net.apply(summed)
    return net.learnt()

@case("eager")
def _():
    net = Net()
    for x, y in slow_data():
        net.update(x, y)
    return net.learnt()

@case("fetched_inside")
def _():
    net = Net()
    @tf.function
    def step(iterator):
        net.update(*next(iterator))
    iterator = iter(slow_data())
    try:
        while True:
            step(iterator)
    except tf.errors.OutOfRangeError:
        pass
    return net.learnt()

@case("traced_by_hand")
def _():
    net = Net()
    specs = [tf.TensorSpec((None, 16)), tf.TensorSpec((None, 1))]
    @tf.function
    def update(x, y, function):
        net.update(x, y)
    step = update.get_concrete_function(*specs, function="by hand")
    for x, y in slow_data():
        step(x, y)
    return net.learnt()

@case("mirrored")
def _():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        net = Net()
    @tf.function
    def step(batch):
        strategy.run(net.update, args=batch)
    for batch in strategy.experimental_distribute_dataset(slow_data()):
        step(batch)
    return net.learnt()

@case("another_thread_reads")
def _():
    net = Net()
    step = tf.function(net.update)
    other = Net()
    other.model.compile("sgd", "mse", jit_compile=False)
    def read():
        for _ in data().batch(1):
            pass
        other.model.evaluate(data().batch(8), verbose=0)
        other.model.predict(data().batch(8), verbose=0)
    reader = threading.Thread(target=read)
    reader.start()
    for x, y in slow_data():
        step(x, y)
    reader.join()
    return net.learnt()

@case("run_eagerly")
def _():
    net = Net()
    step = tf.function(net.update)
    tf.config.run_functions_eagerly(True)
    for x, y in slow_data():
        step(x, y)
    tf.config.run_functions_eagerly(False)
    return net.learnt()

@case("whole_epoch")
def _():
    net = Net()
    @tf.function
    def epoch(batches):
        for x, y in batches:
            net.update(x, y)
    for _ in range(3):
        epoch(data().batch(8))
    return net.learnt()

@case("marked")
def _():
    from hpcprof import annotate
    net = Net()
    step = tf.function(net.update)
    for x, y in annotate.data(slow_data()):
        with annotate.step():
            step(x, y)
    return net.learnt()
"""
)


@pytest.fixture(scope="module", params=["horovod_python", "tensorflow_python"])
def python(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def training(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Hooked:
    return hooked_training.hooked(python, TRAINING, tmp_path_factory.mktemp("hooked"))


@pytest.fixture(scope="module")
def bare(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return hooked_training.bare(python, TRAINING, tmp_path_factory.mktemp("bare"))


def test_weights_are_the_same_bit_for_bit(training: Hooked, bare: dict[str, str]) -> None:
    assert {name: case.digest for name, case in training.cases.items()} == bare
    assert len(bare) == 11


STEPS = {
    **{"by_hand": 12, "plain": 24, "accumulated": 4, "eager": 12, "fetched_inside": 12},
    **{"traced_by_hand": 12, "mirrored": 12, "another_thread_reads": 12, "run_eagerly": 12},
    **{"whole_epoch": 3, "marked": 12},
}


def test_a_step_is_an_update(training: Hooked) -> None:
    assert {name: len(case.steps) for name, case in training.cases.items()} == STEPS
    numbers = [step.step for case in training.cases.values() for step in case.steps]
    assert numbers == list(range(sum(STEPS.values())))


SEPARABLE = [
    *("by_hand", "plain", "eager", "traced_by_hand", "mirrored", "another_thread_reads"),
    "run_eagerly",
]


@pytest.mark.parametrize("name", [*SEPARABLE, "marked"])
def test_each_step_has_the_wait_for_its_batch(training: Hooked, name: str) -> None:
    case = training.cases[name]
    inputs = case.named("input")
    assert [each.step for each in inputs] == [step.step for step in case.steps]
    for fetch, step in zip(inputs, case.steps, strict=True):
        assert fetch.end_ns <= step.start_ns


@pytest.mark.parametrize("name", ["by_hand", "plain", "eager", "traced_by_hand", "marked"])
def test_a_delay_of_the_data_is_in_input(training: Hooked, name: str) -> None:
    case = training.cases[name]
    assert median((each.end_ns - each.start_ns) / 1e6 for each in case.named("input")) > 10
    assert _is_in_order(case)


def _is_in_order(case: Case) -> bool:
    """Whether the steps and the waits for their batches follow each other."""
    ends = sorted((each.start_ns, each.end_ns) for each in (*case.steps, *case.named("input")))
    return all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_accumulated_gradients_are_one_step(training: Hooked) -> None:
    case = training.cases["accumulated"]
    numbers = [step.step for step in case.steps]
    assert [each.step for each in case.named("input")] == [n for n in numbers for _ in range(3)]
    assert [each.step for each in case.named("compute")] == [n for n in numbers for _ in range(3)]
    assert [each.step for each in case.named("optimizer")] == numbers


def test_an_eager_step_has_its_parts(training: Hooked) -> None:
    case = training.cases["eager"]
    numbers = [step.step for step in case.steps]
    assert [each.step for each in case.named("backward")] == numbers
    assert [each.step for each in case.named("optimizer")] == numbers
    assert case.named("compute") == []
    assert training.training["eager_steps"] == 12 + 4 + 12  # also after accumulations


@pytest.mark.parametrize("name", ["fetched_inside", "whole_epoch"])
def test_what_is_fetched_in_the_graph_is_compute(training: Hooked, name: str) -> None:
    case = training.cases[name]
    assert case.named("input") == []
    assert [each.step for each in case.named("compute")] == [step.step for step in case.steps]


def test_several_updates_in_one_call_are_told(training: Hooked) -> None:
    warnings = training.training["warnings"]
    assert warnings == [
        "epoch makes several updates in one call: a step that was recorded is such a call"
    ]


def test_batches_of_an_evaluation_are_no_input(training: Hooked) -> None:
    case = training.cases["plain"]
    fetched = case.named("fetch", span_format.KIND_HOST)
    assert len(fetched) == 6  # 96 rows in batches of 32, twice
    for fetch in fetched:
        for step in case.steps:
            assert fetch.end_ns <= step.start_ns or step.end_ns <= fetch.start_ns


def test_what_another_thread_reads_and_evaluates_is_not_of_the_training(training: Hooked) -> None:
    case = training.cases["another_thread_reads"]
    assert {each.name for each in case.records} - {"beacon"} == {"input", "compute", "step"}


def test_a_checkpoint_lies_beside_the_steps(training: Hooked) -> None:
    case = training.cases["plain"]
    checkpoints = case.named("checkpoint")
    assert len(checkpoints) == 2
    for checkpoint in checkpoints:
        for step in case.steps:
            assert checkpoint.end_ns <= step.start_ns or step.end_ns <= checkpoint.start_ns


def test_steps_that_the_script_marks_are_left_to_it(training: Hooked) -> None:
    case = training.cases["marked"]
    assert case.named("compute") == []
    assert training.training["steps_by"] == "annotate"


def test_the_training_is_described(training: Hooked) -> None:
    record = training.training
    assert set(record["hooks"].values()) == {"attached"}
    assert (record["strategy"], record["replicas"]) == ("MirroredStrategy", 2)
    assert record["batch_size"] == 8
    assert len(set(record["first_batches"])) == 3
    assert record["optimizer"]["class"] == "SGD"
    assert record["steps"] == sum(STEPS.values())


def test_nothing_went_wrong(training: Hooked) -> None:
    assert training.warnings == []
