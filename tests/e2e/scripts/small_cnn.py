"""A small net and its data, and what makes its training slow on purpose: sleeps of known length.

Asked for by the environment:

    SLOW_INPUT, SLOW_FORWARD, SLOW_BACKWARD, SLOW_OPTIMIZER   milliseconds in each step
    SLOW_ALLREDUCE                                            see horovod_tape.py
    SLOW_RANK                                                 only this rank (default: all)
    SLOW_STEPS                                                "odd" (default) or "all"

A sleep is an operation of the graph that depends on the data and passes it on unchanged, so its
time is spent where it was put and results stay as they are. Of the odd steps only: the even ones
of the same run then say what the rest of the step takes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time

import numpy as np
import tensorflow as tf


def amount(where: str, rank: int = 0) -> float:
    """What the environment asks for at ``where`` on this rank, 0 without."""
    on_rank = os.environ.get("SLOW_RANK", "")
    if on_rank and int(on_rank) != rank:
        return 0.0
    return float(os.environ.get(f"SLOW_{where.upper()}", "0"))


def is_slow(step: int) -> bool:
    """Whether the faults show in this step, the first being 0."""
    return os.environ.get("SLOW_STEPS", "odd") == "all" or step % 2 == 1


def sleep_in_step(step: int, milliseconds: float) -> None:
    """Sleep, if this step is a slow one."""
    if is_slow(step):
        time.sleep(milliseconds / 1000)


def delayed(tensor: tf.Tensor, milliseconds: float) -> tf.Tensor:
    """The tensor, some time later."""
    if not milliseconds:
        return tensor
    calls = itertools.count()

    def wait(value: np.ndarray) -> np.ndarray:
        sleep_in_step(next(calls), milliseconds)
        return value

    # stateful operations would wait for each other
    later = tf.numpy_function(wait, [tensor], tensor.dtype, stateful=False)
    later.set_shape(tensor.shape)
    return later


def delayed_batches(dataset: tf.data.Dataset, milliseconds: float) -> tf.data.Dataset:
    """The data set, each batch read slowly; nothing reads ahead."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    dataset = dataset.with_options(options)
    if not milliseconds:
        return dataset

    def read(number: tf.Tensor, batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        def wait(step: np.ndarray, labels: np.ndarray) -> np.ndarray:
            sleep_in_step(int(step), milliseconds)
            return labels

        images, labels = batch
        later = tf.numpy_function(wait, [number, labels], labels.dtype)
        later.set_shape(labels.shape)
        return images, later

    return dataset.enumerate().map(read)


class Block(tf.keras.layers.Layer):
    """Slow forward, slow backward: a layer of somebody's own."""

    def __init__(self, rank: int = 0, **settings) -> None:
        super().__init__(**settings)
        self.forward_ms = amount("forward", rank)
        self.backward_ms = amount("backward", rank)

    def call(self, inputs):
        """The inputs, later."""

        @tf.custom_gradient
        def block(values):
            def gradient(upstream):
                return delayed(upstream, self.backward_ms)

            return delayed(values, self.forward_ms), gradient

        return block(inputs)

    def compute_output_shape(self, input_shape):
        """As it comes in."""
        return input_shape


def optimizer(rank: int = 0, **settings) -> tf.keras.optimizers.Optimizer:
    """Adam; with a slow update of the last bias where that is asked for."""
    milliseconds = amount("optimizer", rank)
    if not milliseconds:
        return tf.keras.optimizers.Adam(**settings)

    class CarefulAdam(tf.keras.optimizers.Adam):
        """An optimiser of somebody's own."""

        def update_step(self, gradient, variable, *rest):
            """Adam's."""
            if tuple(variable.shape) == (CLASSES,):
                gradient = delayed(gradient, milliseconds)
            return super().update_step(gradient, variable, *rest)

    return CarefulAdam(**settings)


STEPS = int(os.environ.get("STEPS", "32"))
BATCH, SIZE, CLASSES = 32, 32, 10


def make_deterministic() -> None:
    """The same numbers on every run; one thread, so that operations do not share a core."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("INTER_OP", "1")))
    tf.keras.utils.set_random_seed(7)
    tf.config.experimental.enable_op_determinism()


def images(rank: int = 0, batch: int = BATCH) -> tf.data.Dataset:
    """Batches of noise and labels, without end."""
    numbers = np.random.default_rng(rank)
    pictures = numbers.standard_normal((4 * batch, SIZE, SIZE, 3), dtype=np.float32)
    labels = numbers.integers(0, CLASSES, 4 * batch)
    dataset = tf.data.Dataset.from_tensor_slices((pictures, labels))
    dataset = dataset.repeat().batch(batch, drop_remainder=True)
    return delayed_batches(dataset, amount("input", rank))


def model(rank: int = 0) -> tf.keras.Model:
    """A small convolutional net."""
    layers = tf.keras.layers
    inputs = tf.keras.Input((SIZE, SIZE, 3))
    hidden = layers.Conv2D(16, 3, activation="relu", name="conv_a")(inputs)
    hidden = layers.MaxPooling2D(name="pool_a")(hidden)
    hidden = layers.Conv2D(32, 3, activation="relu", name="conv_b")(hidden)
    hidden = layers.Flatten(name="flat")(hidden)
    hidden = layers.Dense(64, activation="relu", name="hidden")(hidden)
    hidden = Block(rank, name="block")(hidden)
    outputs = layers.Dense(CLASSES, name="head")(hidden)
    return tf.keras.Model(inputs, outputs, name="net")


def report(rank: int, loss: float, trained: tf.keras.Model) -> None:
    """Print what the training came to, to the last bit."""
    content = b"".join(np.ascontiguousarray(each).tobytes() for each in trained.get_weights())
    print(f"rank {rank} loss {float(loss)!r} weights {hashlib.sha256(content).hexdigest()}")
