"""The training of ``bench_overhead``: switches hpcprof's levels on and off, and notes every step.

    python -m hpcprof launch … -- python overhead_training.py FILE FORM ROUNDS DEEP_EVERY BLOCK

A training that knows nothing of hpcprof but the switches. FORM: "loop" (over tf.data, with a
``tf.function``), "fit" (Keras's) or "empty" (a loop that has next to nothing to do). A round is one
block of steps in each mode, every other round backwards. Writes what ``Blocks`` noted to FILE.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import small_cnn
import tensorflow as tf

from hpcprof.annotate import automatic, op_switch

BATCH = 160
STEPS_PER_EPOCH = 1_000_000  # the blocks say when it is over
OFF, HOOKS, OP_RANGES, PROFILER = "off", "L0+L1", "L2", "L3"


class Blocks:
    """Blocks of steps, each in a mode. ``blocks``: round, mode, ms of each step on the clock and
    of processor time (of all threads), ms of switching.

    Round 0 is for warming up: whatever is compiled in a mode is compiled there. The first step
    after a switch is not timed.
    """

    def __init__(self, rounds: int, deep_every: int, block: int, logs: Path) -> None:
        self.blocks: list[dict] = []
        self._logs = logs
        self._length = block
        self._to_come = []
        for number in range(rounds + 1):
            modes = [OFF, HOOKS] if number % deep_every else [OFF, HOOKS, OP_RANGES, PROFILER]
            self._to_come += [(number, mode) for mode in modes[:: 1 if number % 2 == 0 else -1]]
        self._left = 0
        self._begin = self._cpu_begin = 0
        self._switch_off: Callable[[], object] = lambda: None

    def step_ended(self) -> bool:
        """To be called between steps. Whether there are more to come."""
        now, cpu = time.perf_counter_ns(), time.process_time_ns()
        if 0 < self._left <= self._length:
            self.blocks[-1]["ms"].append((now - self._begin) / 1e6)
            self.blocks[-1]["cpu_ms"].append((cpu - self._cpu_begin) / 1e6)
        self._left -= 1
        if self._left > 0:
            self._begin, self._cpu_begin = time.perf_counter_ns(), time.process_time_ns()
            return True
        return self._switch()

    def _switch(self) -> bool:
        before = time.perf_counter_ns()
        self._switch_off()
        between = time.perf_counter_ns()
        if self.blocks:
            self.blocks[-1]["switch"] += (between - before) / 1e6
        if not self._to_come:
            return False
        number, mode = self._to_come.pop(0)
        self._switch_off = switch_on(mode, self._logs)
        after = time.perf_counter_ns()
        switch = (after - between) / 1e6
        block = {"round": number, "mode": mode, "ms": [], "cpu_ms": [], "switch": switch}
        self.blocks.append(block)
        self._left = self._length + 1
        return True


def switch_on(mode: str, logs: Path) -> Callable[[], object]:
    """Switch hpcprof to a level; what is returned switches what that level added off again."""
    if mode == OFF:
        automatic.pause()
        return automatic.resume
    if mode == OP_RANGES:
        switch = op_switch.find_switch()
        switch(True)
        return lambda: switch(False)
    if mode == PROFILER:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
        )
        tf.profiler.experimental.start(str(logs), options)
        return tf.profiler.experimental.stop
    return lambda: None


def run_loop(blocks: Blocks) -> None:
    """A loop of one's own."""
    model = small_cnn.model()
    optimizer = small_cnn.optimizer(learning_rate=1e-3)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for images, labels in small_cnn.images(batch=BATCH):
        train_step(images, labels)
        if not blocks.step_ended():
            break


def run_empty(blocks: Blocks) -> None:
    """A loop of steps so short that what is added to them shows by itself."""
    weight = tf.Variable(tf.ones([4]))
    optimizer = tf.keras.optimizers.SGD()
    optimizer.build([weight])

    @tf.function
    def train_step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * values)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    for values in tf.data.Dataset.from_tensors(tf.ones([4])).repeat():
        train_step(values)
        if not blocks.step_ended():
            break


def run_fit(blocks: Blocks) -> None:
    """Keras's ``fit``."""

    class Switches(tf.keras.callbacks.Callback):
        """Between the batches."""

        def on_train_batch_end(self, batch, logs=None):
            """A step has ended."""
            if not blocks.step_ended():
                # stop_training alone counts at the end of an epoch only
                self.model.stop_training = True
                raise KeyboardInterrupt

    model = small_cnn.model()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=small_cnn.optimizer(learning_rate=1e-3), loss=loss)
    batches = small_cnn.images(batch=BATCH)
    with contextlib.suppress(KeyboardInterrupt):
        model.fit(batches, steps_per_epoch=STEPS_PER_EPOCH, callbacks=[Switches()], verbose=0)


def main() -> None:
    """Train, and write the blocks."""
    file, form = Path(sys.argv[1]), sys.argv[2]
    rounds, deep_every, block = map(int, sys.argv[3:6])
    small_cnn.make_deterministic()
    blocks = Blocks(rounds, deep_every, block, file.parent / "tf")
    {"loop": run_loop, "fit": run_fit, "empty": run_empty}[form](blocks)
    file.write_text(json.dumps(blocks.blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
