"""Two real Horovod ranks whose scripts know nothing of hpcprof: who is accused, and who is not.

Keras 3 with Horovod 0.28.1 really averages nothing: no part of Horovod is replaced here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
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


def loop(*, seed: str, tape: str = "pass", average: str = "pass", broadcast: str = "pass") -> str:
    """A loop of one's own; each argument is a line of it."""
    filled = {"SEED": seed, "TAPE": tape, "AVERAGE": average, "BROADCAST": broadcast}
    text = LOOP
    for word, line in filled.items():
        text = text.replace(word, line)
    return text


@dataclass(frozen=True)
class Outcome:
    """What the ranks said on stderr, what they noted, and what collect made of it."""

    said: list[str]
    notes: list[dict[str, Any]]
    record: dict[str, Any]

    def findings(self, *rules: str) -> list[dict[str, Any]]:
        """The findings of these rules."""
        return [each for each in self.record["findings"] if each["rule"] in rules]

    @property
    def accusations(self) -> set[str]:
        """The rules that say something is wrong with the training itself."""
        rules = ("no-gradient-sync", "no-broadcast", "same-input-shard", "batch-size-differs")
        more = ("step-count-differs", "retracing", "eager-training", "hooks-failed")
        return {each["rule"] for each in self.findings(*rules, *more)}


def trained(python: Path, script: str, folder: Path) -> Outcome:
    """Run the script on two ranks under the launcher, and collect."""
    path, run_dir = folder / "train.py", folder / "run"
    path.write_text(script)
    launching.write_run_json(run_dir)
    ours = ("HPCPROF_", "SLURM_", "OMPI_", "PMI")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"PYTHONPATH": str(launching.REPOSITORY), "CUDA_VISIBLE_DEVICES": "-1"}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "2", "OMPI_MCA_mpi_yield_when_idle": "1"}
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    done = subprocess.run(
        [*mpirun, *launching.argv(run_dir, [str(python), str(path)], "--profiler", "none")],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    paths = ArtifactPaths(run_dir)
    return Outcome(
        said=[line for line in done.stderr.splitlines() if line.startswith("hpcprof: ")],
        notes=[json.loads(paths.training(rank).read_text()) for rank in range(2)],
        record=pipeline.collect(run_dir).record,
    )


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
