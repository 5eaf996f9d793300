"""Keras's fit under the hooks, unmodified: Keras 2 on TensorFlow 2.15, Keras 3 on 2.17."""

from __future__ import annotations

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
tf.config.experimental.enable_op_determinism()
keras = tf.keras

def model(cls=keras.Sequential, dropout=0.3, **options):
    made = cls([keras.layers.Dense(32, "relu"), keras.layers.Dropout(dropout),
                keras.layers.Dense(1)])
    made.compile(keras.optimizers.Adam(0.01), "mse", **{"jit_compile": False, **options})
    return made

@case("unknown_size")
def _():
    # Keras finds the end of the data by asking for one batch more
    one = model()
    one.fit(slow_data().filter(lambda x, y: True), epochs=2, verbose=0,
            validation_data=data().batch(32),
            callbacks=[keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)])
    one.predict(data().batch(32), verbose=0)
    return one.get_weights()

@case("ragged_end")
def _():
    one = model()
    one.fit(data(rows=92).batch(8), epochs=2, verbose=0)
    return one.get_weights()

@case("eager")
def _():
    one = model(run_eagerly=True)
    one.fit(data().batch(8), verbose=0)
    return one.get_weights()

@case("interrupted")
def _():
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                raise KeyboardInterrupt
    one = model()
    try:
        one.fit(data().batch(8), verbose=0, callbacks=[Stops()])
    except KeyboardInterrupt:
        pass
    one.fit(data().batch(8), verbose=0)
    return one.get_weights()

@case("broken")
def _():
    def breaks(x):
        raise OSError("no such file")
    one = model()
    broken = data().batch(8).map(
        lambda x, y: (tf.ensure_shape(tf.numpy_function(breaks, [x], tf.float32), (None, 16)), y))
    try:
        one.fit(broken, verbose=0)
    except tf.errors.UnknownError as error:
        return [np.frombuffer(str("no such file" in str(error)).encode(), "uint8")]

@case("on_batch")
def _():
    one = model()
    for x, y in slow_data():
        one.train_on_batch(x, y)
    one.evaluate(data().batch(8), verbose=0)
    return one.get_weights()

@case("overridden")
def _():
    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            made = super().make_train_function(force)
            if not hasattr(self.train_function, "is_own"):
                inner = self.train_function
                def outer(iterator):
                    return inner(iterator)
                outer.is_own = True
                self.train_function = outer
            return self.train_function
    one = model(Own)
    one.fit(data().batch(8), verbose=0)
    return one.get_weights()

@case("odd_batches")
def _():
    class Noisy(keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            x = x + 0.1 * tf.random.normal(tf.shape(x))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}
    def without_weights():
        for x, y in data().batch(8):
            yield x.numpy(), y.numpy(), None
    named = keras.Input((16,), name="named")
    of_names = keras.Model({"named": named}, keras.layers.Dense(1)(named))
    of_names.compile("sgd", "mse", jit_compile=False)
    noisy, plain, thin = model(Noisy), model(), model()
    noisy.fit(data().batch(8), epochs=2, verbose=0)
    plain.fit(without_weights(), verbose=0)
    of_names.fit(data().batch(8).map(lambda x, y: ({"named": x}, y)), verbose=0)
    thin.fit(data().batch(8).map(lambda x, y: (tf.sparse.from_dense(tf.round(x)), y)), verbose=0)
    return [each for one in (noisy, plain, of_names, thin) for each in one.get_weights()]

@case("batch_ignored")
def _():
    # nothing in the graph needs the batch, so TensorFlow does not take it out of its Optional
    class Physics(keras.Sequential):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(tf.ones((8, 16)), training=True) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}
    batches = []
    class Counts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            batches.append(batch)
            assert batch < 20, "never ends"
    one = model(Physics)
    one.fit(data().batch(8).filter(lambda x, y: True), verbose=0, callbacks=[Counts()])
    return [np.array(batches)]

@case("two_at_once")
def _():
    from threading import Barrier, Thread
    both = Barrier(2)
    class Waits(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            both.wait()
        on_train_end = on_train_begin
    def fit():
        model().fit(data().batch(8), verbose=0, callbacks=[Waits()])
    threads = [Thread(target=fit), Thread(target=fit)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return []

@case("resources")
def _():
    from importlib import resources
    names = sorted(each.name for each in resources.files("tensorflow").iterdir())
    return [np.array([type(tf.__loader__).__name__, type(tf.__spec__.loader).__name__, *names])]

@case("four_in_one")
def _():
    one = model(steps_per_execution=4)
    one.fit(data().batch(8), epochs=2, verbose=0)
    return one.get_weights()

@case("compiled")
def _():
    # Keras 3 compiles nothing where operations have to be deterministic
    from tensorflow.python.framework import config
    config.disable_op_determinism()
    one = model(jit_compile=True)
    one.fit(data().batch(8), None, None, 1, 0, [keras.callbacks.TensorBoard("tb")])
    return one.get_weights()
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
    assert len(bare) == 13


STEPS = {
    **{"unknown_size": 24, "ragged_end": 24, "eager": 12, "interrupted": 17, "broken": 0},
    **{"on_batch": 12, "overridden": 12, "odd_batches": 60, "four_in_one": 6, "compiled": 12},
    **{"batch_ignored": 12, "two_at_once": 12, "resources": 0},
}


def test_a_step_is_a_call_of_the_training_function(training: Hooked) -> None:
    assert {name: len(case.steps) for name, case in training.cases.items()} == STEPS
    numbers = [step.step for case in training.cases.values() for step in case.steps]
    assert numbers == sorted(set(numbers))


def test_steps_of_several_updates_are_numbered_by_their_first(training: Hooked) -> None:
    numbers = [step.step for step in training.cases["four_in_one"].steps]
    assert numbers == list(range(numbers[0], numbers[0] + 24, 4))


@pytest.mark.parametrize("name", ["unknown_size", "ragged_end", "eager", "odd_batches"])
def test_the_wait_for_input_is_told_apart(training: Hooked, name: str) -> None:
    case = training.cases[name]
    inputs, computes = case.named("input"), case.named("compute")
    assert [each.step for each in inputs] == [step.step for step in case.steps]
    assert [each.step for each in computes] == [step.step for step in case.steps]
    for fetch, step, compute in zip(inputs, case.steps, computes, strict=True):
        assert fetch.end_ns == step.start_ns
        assert step.start_ns <= compute.start_ns <= compute.end_ns <= step.end_ns


@pytest.mark.parametrize("name", ["unknown_size", "on_batch"])
def test_a_delay_of_the_data_is_in_input(training: Hooked, name: str) -> None:
    case = training.cases[name]
    assert _median_ms(case, "input") > 10
    assert _median_ms(case, "input") < 10 + _median_ms(case, "compute") + 10


def _median_ms(case: Case, phase: str) -> float:
    return median((each.end_ns - each.start_ns) / 1e6 for each in case.named(phase))


@pytest.mark.parametrize("name", ["overridden", "four_in_one"])
def test_a_call_that_cannot_be_divided_is_compute(training: Hooked, name: str) -> None:
    case = training.cases[name]
    assert case.named("input") == []
    assert [each.step for each in case.named("compute")] == [step.step for step in case.steps]
    assert training.training["input_not_separable"] == "Own overrides make_train_function"


def test_evaluations_and_checkpoints_lie_beside_the_steps(training: Hooked) -> None:
    case = training.cases["unknown_size"]
    evaluations, checkpoints = case.named("eval"), case.named("checkpoint")
    assert (len(evaluations), len(checkpoints)) == (2, 2)
    assert len(case.named("predict", span_format.KIND_HOST)) == 1
    for beside in (*evaluations, *checkpoints):
        for step in case.steps:
            assert beside.end_ns <= step.start_ns or step.end_ns <= beside.start_ns
    assert len(training.cases["on_batch"].named("eval")) == 1


def test_the_training_is_described(training: Hooked) -> None:
    record = training.training
    assert set(record["hooks"].values()) == {"attached"}
    assert (record["steps_by"], record["batch_size"]) == ("keras", 8)
    assert record["phases_not_separable"] == "jit_compile"
    assert record["optimizer"]["class"] == "Adam"
    assert record["optimizer"]["learning_rate"] == pytest.approx(0.01)
    assert {"adam", "Adam"} <= set(record["optimizer"]["scopes"])
    assert record["eager_steps"] == 12
    assert record["callbacks"] == ["TensorBoard"]
    assert [layer["type"] for layer in record["model"]["layers"]][-3:] == (
        ["Dense", "Dropout", "Dense"]
    )
    weights = [each for each in record["variables"] if each["role"] == "weight"]
    trainable = {tuple(each["shape"]): each["bytes"] for each in weights if each["trainable"]}
    assert trainable == {(16, 32): 2048, (32,): 128, (32, 1): 128, (1,): 4}
    slots = [each["shape"] for each in record["variables"] if each["role"] == "optimizer"]
    assert slots.count([16, 32]) == 2
    two, several = record["warnings"]
    assert "steps_per_execution is 4: a step that was recorded is a call of so many" in several
    assert two == "several threads run fit at once: only steps of one are recorded"


def test_nothing_went_wrong(training: Hooked) -> None:
    assert training.warnings == []
