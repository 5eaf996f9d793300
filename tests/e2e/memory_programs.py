"""Trainings whose use of memory is known, on a CPU whose allocator says what it does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

from hpcprof.analyses.memory_split import MemorySplit, memory_splits
from hpcprof.artifacts import rank_env
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers.xplane import read_tf_memory
from hpcprof.trace.model import Training
from tests.unit import annotated

# arguments: model, its sizes, batch size, optimizer. The last line names the variables
# and what the memory was after each step
PROGRAM = """
import json, sys
import tensorflow as tf
from hpcprof import annotate
from hpcprof.annotate import tf_profiler, training_notes

# one thread: the same order of operations in every step
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf_profiler.start_early()
kind, sizes, batch, optimizer = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
keras = tf.keras
layers, is_images = [], kind == "cnn"
if is_images:
    layers += [
        keras.layers.Conv2D(sizes[0], 3, activation="relu", name="conv_a"),
        keras.layers.BatchNormalization(name="bn"),
        keras.layers.Conv2D(sizes[1], 3, strides=2, activation="relu", name="conv_b"),
        keras.layers.Flatten(),
        keras.layers.Dense(sizes[2], name="hidden"),
    ]
else:
    layers += [keras.layers.Dense(size, activation="tanh") for size in sizes[1:]]
shape = (32, 32, 3) if is_images else (sizes[0],)
model = keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(10, name="head")])
optimizer = {"adam": keras.optimizers.Adam, "sgd": keras.optimizers.SGD}[optimizer]()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
element = (tf.random.normal((batch, *shape)), tf.zeros((batch,), tf.int32))
data = tf.data.Dataset.from_tensors(element).repeat(6)

class Steps(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.step = annotate.step()
        self.step.__enter__()
    def on_train_batch_end(self, batch, logs=None):
        self.step.__exit__(None, None, None)

@tf.function(jit_compile=kind == "compiled mlp")
def train(x, y):
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return value

if is_images:
    model.compile(optimizer, loss, jit_compile=False)
    model.fit(data, verbose=0, callbacks=[Steps()])
else:
    for x, y in data:
        with annotate.step():
            train(x, y).numpy()

def told(variable, role, trains):
    value = tf.convert_to_tensor(variable)
    return [variable.name, int(tf.size(value)) * value.dtype.size, role, trains]

trainable = {id(variable) for variable in model.trainable_variables}
state = optimizer.variables if not callable(optimizer.variables) else optimizer.variables()
variables = [told(v, "weight", id(v) in trainable) for v in model.variables]
variables += [told(v, "optimizer", False) for v in state]
annotate.close()
print(json.dumps({"variables": variables, "memory": training_notes.seen("memory")}))
"""
WHOLE = "0-5"  # the recording starts before the model is built


class Split(NamedTuple):
    """What was found, and what the training says of its own variables, in bytes.

    ``samples``: step, bytes given away, most so far, as TensorFlow was asked after its steps.
    """

    found: MemorySplit
    weights: int
    optimizer: int
    samples: tuple[tuple[int, int, int], ...]


def split(
    python: Path,
    run_dir: Path,
    model: str,
    sizes: list[int],
    *,
    batch: int,
    optimizer: str,
    steps: str = WHOLE,
) -> Split:
    """Run a training for six steps and divide its memory at the peak."""
    paths = ArtifactPaths(run_dir)
    paths.rank_folder(annotated.RANK).mkdir(parents=True)
    environment = {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_CPU_ALLOCATOR_USE_BFC": "1",
        "TF_CPU_BFC_MEM_LIMIT_IN_MB": "2048",
        rank_env.TF_STEPS: steps,
        rank_env.HOOKS: "0",
    }
    done = subprocess.run(
        [str(python), "-c", PROGRAM, model, json.dumps(sizes), str(batch), optimizer],
        env=annotated.environ(paths.rank_folder(annotated.RANK), run_dir / "state", **environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    variables = tuple((*each,) for each in told["variables"])
    training = Training(variables=variables, optimizer_scopes=(optimizer,))
    folder = paths.tf_profile(annotated.RANK)
    record, marked = read_tf_memory(folder, annotated.RANK, training)
    (found,) = memory_splits(record, marked, training)
    sums = {
        role: sum(nbytes for _, nbytes, of, _ in variables if of == role)
        for role in ("weight", "optimizer")
    }
    samples = tuple((*each,) for each in told["memory"]["CPU:0"])
    return Split(found, sums["weight"], sums["optimizer"], samples)
