"""The training of ``bench_overhead``: switches hpcprof's levels on and off, and notes every step.

    python -m hpcprof launch … -- python overhead_training.py FILE ROUNDS DEEP_EVERY BLOCK

Its last argument but three is the file for the times. A loop over tf.data that knows nothing of
hpcprof but the switches; a round is one block of steps in each mode, every other round backwards.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import small_cnn
import tensorflow as tf

from hpcprof.annotate import automatic, op_switch

BATCH = 96
WARM_UP_STEPS = 20
OFF, HOOKS, OP_RANGES, PROFILER = "off", "L0+L1", "L2", "L3"


def main() -> None:
    """Train, and write the blocks: mode, milliseconds of each step, and those of switching."""
    file, (rounds, deep_every, block) = sys.argv[1], map(int, sys.argv[2:5])
    small_cnn.make_deterministic()
    train_step = make_train_step()
    batches = iter(small_cnn.images(batch=BATCH))
    for _ in range(WARM_UP_STEPS):
        train_step(*next(batches))
    logs = Path(file).parent / "tf"
    blocks = []
    for number in range(rounds):
        modes = [OFF, HOOKS] if number % deep_every else [OFF, HOOKS, OP_RANGES, PROFILER]
        for mode in modes if number % 2 == 0 else modes[::-1]:
            begin = time.perf_counter_ns()
            switch_off = switch_on(mode, logs)
            switching = time.perf_counter_ns() - begin
            steps = [round(each, 4) for each in timed(train_step, batches, block)]
            begin = time.perf_counter_ns()
            switch_off()
            switching += time.perf_counter_ns() - begin
            blocks.append({"round": number, "mode": mode, "ms": steps, "switch": switching / 1e6})
    automatic.resume()
    Path(file).write_text(json.dumps(blocks), encoding="utf-8")


def make_train_step() -> Callable[..., object]:
    """The compiled update of a small net."""
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

    return train_step


def timed(train_step: Callable[..., object], batches: Iterator, block: int) -> Iterator[float]:
    """Milliseconds of ``block`` steps, from before a batch is fetched to before the next one.

    One step more is made, and not timed: it is the first after a switch.
    """
    train_step(*next(batches))
    begin = time.perf_counter_ns()
    for _ in range(block):
        train_step(*next(batches))
        now = time.perf_counter_ns()
        yield (now - begin) / 1e6
        begin = now


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


if __name__ == "__main__":
    main()
