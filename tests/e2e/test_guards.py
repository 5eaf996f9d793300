"""Two real Horovod ranks whose scripts know nothing of hpcprof: who is accused, and who is not.

Keras 3 with Horovod 0.28.1 really averages nothing: no part of Horovod is replaced here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from hpcprof import pipeline
from hpcprof.artifacts.paths import ArtifactPaths
from tests.unit import launching

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun"),
]

DATA = """
import numpy as np
import tensorflow as tf

def samples(seed, count=96):
    x = np.random.default_rng(seed).random((count, 8), np.float32)
    return x, x.sum(1, keepdims=True)

def network():
    return tf.keras.Sequential(
        [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)]
    )
"""

# as in Horovod's example tensorflow2_keras_mnist.py, but that its callback fails with Keras 3
FIT = (
    DATA
    + """
import keras
import horovod.tensorflow.keras as hvd
hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
x, y = samples(hvd.rank())
model = network()
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01 * hvd.size())), "mse")
callbacks = []
if not keras.__version__.startswith("3."):
    callbacks.append(hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    callbacks.append(hvd.callbacks.MetricAverageCallback())
model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
"""
)

LOOP = (
    DATA
    + """
import horovod.tensorflow as hvd
hvd.init()
tf.random.set_seed(hvd.rank())
x, y = samples(SEED)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = network()
optimizer = tf.keras.optimizers.SGD(0.01)

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    TAPE
    gradients = tape.gradient(loss, model.trainable_variables)
    AVERAGE
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

for step, (x, y) in enumerate(dataset):
    loss = train_step(x, y)
    if step == 0:
        BROADCAST
"""
)


# what Horovod can be asked for: each of these goes through what the hook replaces
WAYS = (
    DATA
    + """
import sys
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
hvd.init()
tf.config.experimental.enable_op_determinism()
x, y = samples(hvd.rank(), 32)
words = np.random.default_rng(hvd.rank()).integers(0, 20, (32, 4))

def told(way, model):
    sums = [float(np.float64(np.abs(weight)).sum()) for weight in model.get_weights()]
    sys.stdout.write(f"rank {hvd.rank()}: {way}: {sums}\\n")
    sys.stdout.flush()

def fit(way, model, data, optimizer, **options):
    tf.keras.utils.set_random_seed(1)
    model.compile(hvd_keras.DistributedOptimizer(optimizer, **options), "mse")
    broadcast = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(data, y, batch_size=8, verbose=0, callbacks=[broadcast])
    told(way, model)

def loop(way, model, wrap, function):
    tf.keras.utils.set_random_seed(1)
    optimizer = tf.keras.optimizers.SGD(0.01)

    @function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = wrap(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for first in range(0, 32, 8):
        step(x[first:first + 8], y[first:first + 8])
        if first == 0:
            is_eager = function is not tf.function
            hvd.broadcast_variables(model.variables, root_rank=0, inplace=is_eager)
    told(way, model)

def embedding():
    layers = [tf.keras.layers.Embedding(20, 8), tf.keras.layers.GlobalAveragePooling1D()]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])

old = tf.keras.optimizers.legacy.SGD(0.01)
fit("every second", network(), x, old, backward_passes_per_step=2)
fit("groups, fp16", network(), x, tf.keras.optimizers.Adam(), groups=2,
    compression=hvd.Compression.fp16)
fit("sparse", embedding(), words, tf.keras.optimizers.SGD(0.01))
loop("eager", network(), hvd.DistributedGradientTape, lambda function: function)
own = network()
wrap = lambda tape: hvd.PartialDistributedGradientTape(tape, local_layers=[own.layers[-1]])
loop("partial", own, wrap, tf.function)
layers = [tf.keras.layers.Dense(8), hvd.SyncBatchNormalization(), tf.keras.layers.Dense(1)]
loop("batch norm", tf.keras.Sequential(layers), hvd.DistributedGradientTape, tf.function)
assert hvd.broadcast_object(hvd.rank()) == 0
assert hvd.allgather_object(hvd.rank()) == [0, 1]
"""
)


# rank 0 gives its tf.function another Python number each time; rank 1 has none
SLOW = (
    DATA
    + """
import os
rank = int(os.environ["HPCPROF_RANK"])
model = network()
optimizer = tf.keras.optimizers.SGD(0.01)

def train_step(x, y, step):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

if rank == 0:
    train_step = tf.function(train_step)
batches = tf.data.Dataset.from_tensor_slices(samples(rank)).batch(8 if rank == 0 else 12)
for step, (x, y) in enumerate(batches):
    train_step(x, y, step)
"""
)


def loop(*, seed: str, tape: str = "pass", average: str = "pass", broadcast: str = "pass") -> str:
    """A loop of one's own; each argument is a line of it."""
    filled = {"SEED": seed, "TAPE": tape, "AVERAGE": average, "BROADCAST": broadcast}
    text = LOOP
    for word, line in filled.items():
        text = text.replace(word, line)
    return text


@dataclass(frozen=True)
class Outcome:
    """What the ranks printed and said on stderr, what they noted, and what collect made of it."""

    output: str
    errors: str
    paths: ArtifactPaths

    @property
    def said(self) -> list[str]:
        """The lines of hpcprof on stderr."""
        return [line for line in self.errors.splitlines() if line.startswith("hpcprof: ")]

    @cached_property
    def notes(self) -> list[dict[str, Any]]:
        """training.json of both ranks."""
        return [json.loads(self.paths.training(rank).read_text()) for rank in range(2)]

    @cached_property
    def record(self) -> dict[str, Any]:
        """findings.json."""
        return pipeline.collect(self.paths.root).record

    def findings(self, *rules: str) -> list[dict[str, Any]]:
        """The findings of these rules."""
        return [each for each in self.record["findings"] if each["rule"] in rules]

    @property
    def accusations(self) -> set[str]:
        """The rules that say something is wrong with the training itself."""
        rules = ("no-gradient-sync", "no-broadcast", "same-input-shard", "batch-size-differs")
        more = ("step-count-differs", "retracing", "eager-training", "hooks-failed")
        return {each["rule"] for each in self.findings(*rules, *more)}


def trained(python: Path, script: str, folder: Path, *options: str) -> Outcome:
    """Run the script on two ranks under the launcher."""
    path, run_dir = folder / "train.py", folder / "run"
    folder.mkdir(exist_ok=True)
    path.write_text(script)
    launching.write_run_json(run_dir)
    ours = ("HPCPROF_", "SLURM_", "OMPI_", "PMI")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"PYTHONPATH": str(launching.REPOSITORY), "CUDA_VISIBLE_DEVICES": "-1"}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "2", "OMPI_MCA_mpi_yield_when_idle": "1"}
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    command = [str(python), str(path)]
    done = subprocess.run(
        [*mpirun, *launching.argv(run_dir, command, "--profiler", "none", *options)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Outcome(done.stdout, done.stderr, ArtifactPaths(run_dir))


@pytest.fixture(scope="module")
def keras3_fit(keras3_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return trained(keras3_python, FIT, tmp_path_factory.mktemp("keras3"))


def test_keras_3_with_horovod_is_told_within_five_steps(keras3_fit: Outcome) -> None:
    (line,) = [line for line in keras3_fit.said if "NO_GRADIENT_SYNC" in line]
    assert line.startswith(
        "hpcprof: rank 0: NO_GRADIENT_SYNC: 5 steps are over and Horovod was given no gradient"
    )
    assert "Horovod 0.28.1 knows Keras 2 only, and this is Keras 3." in line


def test_the_weights_prove_it_after_the_job(keras3_fit: Outcome) -> None:
    (found,) = keras3_fit.findings("no-gradient-sync")
    assert (found["level"], found["status"], found["ranks"]) == ("critical", "ok", [0, 1])
    assert found["steps"] == [1, 4]
    assert "TF_USE_LEGACY_KERAS=1" in found["advice"]
    assert keras3_fit.accusations == {"no-gradient-sync"}


def test_what_horovod_was_asked_for_and_its_settings_are_noted(keras3_fit: Outcome) -> None:
    horovod = keras3_fit.notes[1]["horovod"]
    assert (horovod["size"], horovod["rank"]) == (2, 1)
    assert (horovod["gradients"], horovod["optimizers"], horovod["broadcasts"]) == (0, 1, 0)
    assert horovod["settings"]["HOROVOD_FUSION_THRESHOLD"] == "134217728 (default)"
    assert [note["hooks"]["horovod"] for note in keras3_fit.notes] == ["attached"] * 2


def test_keras_2_with_horovod_is_one_training(horovod_python: Path, tmp_path: Path) -> None:
    outcome = trained(horovod_python, FIT, tmp_path)
    assert (outcome.accusations, outcome.said) == (set(), [])
    horovod = outcome.notes[0]["horovod"]
    assert horovod["gradients"] >= 4
    assert horovod["broadcasts"] >= 4
    assert outcome.notes[0]["checksums"] == outcome.notes[1]["checksums"]
    assert [one["step"] for one in outcome.notes[0]["checksums"]] == [1, 1, 1, 4, 4, 4]
    assert any(text.startswith("one model: ") for text in outcome.record["healthy"])


def test_gradients_that_are_averaged_by_hand_accuse_nobody(
    horovod_python: Path, tmp_path: Path
) -> None:
    script = loop(
        seed="hvd.rank()",
        average="gradients = [hvd.allreduce(g) for g in gradients]",
        broadcast="hvd.broadcast_variables(model.variables, root_rank=0)",
    )
    outcome = trained(horovod_python, script, tmp_path)
    assert (outcome.accusations, outcome.said) == (set(), [])
    horovod = outcome.notes[0]["horovod"]
    assert (horovod["gradients"], horovod["tapes"], horovod["optimizers"]) == (0, 0, 0)
    assert horovod["allreduces"] >= 3


def test_a_missing_broadcast_and_a_missing_shard_are_told(
    horovod_python: Path, tmp_path: Path
) -> None:
    script = loop(seed="1", tape="tape = hvd.DistributedGradientTape(tape)")
    outcome = trained(horovod_python, script, tmp_path)
    assert outcome.accusations == {"no-broadcast", "same-input-shard"}
    levels = {each["rule"]: each["level"] for each in outcome.findings("no-broadcast")}
    assert levels == {"no-broadcast": "critical"}
    assert outcome.said == []
    assert outcome.notes[0]["horovod"]["gradients"] >= 4


def test_tracing_again_and_again_and_not_at_all_are_told(
    keras3_python: Path, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SLOW)
    start = [sys.executable, "-m", "hpcprof", "launch", "--ranks", "2", "--profiler", "none"]
    done = subprocess.run(
        [*start, "--run-dir", str(tmp_path / "run"), "--", str(keras3_python), str(path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = Outcome(done.stdout, done.stderr, ArtifactPaths(tmp_path / "run"))
    # each rank for itself, so that nobody is accused of other batches or fewer steps
    assert outcome.accusations == {"retracing", "eager-training"}
    (retracing,) = outcome.findings("retracing")
    assert retracing["ranks"] == [0]
    # a function that makes its variables in the first call is traced twice for it
    assert "train_step was traced up to 13 times in 12 steps" in retracing["message"]
    (eager,) = outcome.findings("eager-training")
    assert eager["ranks"] == [1]
    assert eager["message"].startswith("8 updates of rank 1 were made eagerly")


@pytest.mark.slow
def test_whatever_horovod_is_asked_for_it_does_the_same_with_and_without_hooks(
    horovod_python: Path, tmp_path: Path
) -> None:
    hooked = trained(horovod_python, WAYS, tmp_path / "hooked")
    plain = trained(horovod_python, WAYS, tmp_path / "plain", "--no-hooks")
    results = [sorted(one.output.splitlines()) for one in (hooked, plain)]
    assert len(results[0]) == 12
    assert results[0] == results[1]
    assert "AutoGraph" not in hooked.errors
    assert not plain.paths.training(0).exists()
    horovod = hooked.notes[0]["horovod"]
    assert (horovod["optimizers"], horovod["scalars"]) == (3, 0)
    assert horovod["tapes"] >= 6
    assert horovod["gradients"] > 30
    assert horovod["allreduces"] > 0, "of the batch normalization"
