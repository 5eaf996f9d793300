"""Steps that tf.profiler records in a real TensorFlow, and what the readers make of the file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from hpcprof.artifacts import manifest, rank_env
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers.spans_reader import SpanRecords, read_span_file
from hpcprof.readers.xplane import TfProfile, read_tf_profile
from hpcprof.trace import columns as c
from tests.unit import annotated

pytestmark = pytest.mark.e2e

# every batch takes 20 ms to make, and nothing prepares it in advance
WAIT_MS = 20
TRAINING = f"""
import time
import numpy as np
import tensorflow as tf
from hpcprof import annotate

def slow(x, y):
    def sleep(value):
        time.sleep({WAIT_MS / 1000})
        return value
    wait = tf.numpy_function(sleep, [x], tf.float32)
    wait.set_shape(x.shape)
    return wait / 2.0, y

x = tf.random.normal((64, 256))
data = tf.data.Dataset.from_tensors((x, tf.zeros((64,), tf.int32))).repeat(12).map(slow)
options = tf.data.Options()
options.experimental_optimization.inject_prefetch = False
data = data.with_options(options)
model = tf.keras.Sequential([tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(10)])
model.build((None, 256))
optimizer = tf.keras.optimizers.Adam()
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return value

for x, y in annotate.data(data):
    with annotate.step():
        train(x, y).numpy()
"""
STEPS = range(4, 9)

# the training's own profiler: running already when ours is to start, then started while ours runs
OTHERS = """
import os, sys
import tensorflow as tf
from hpcprof.annotate.tf_profiler import ProfilerWindow
from hpcprof.artifacts.step_range import StepRange

own, ours = sys.argv[1:]
tf.profiler.experimental.start(own)
window = ProfilerWindow(StepRange(0, 3), ours, traces_device=False)
print("left at once:", window.step_begins(0), os.path.exists(ours))
tf.profiler.experimental.stop()

window = ProfilerWindow(StepRange(0, 3), ours, traces_device=False)
print("runs:", not window.step_begins(0) and window.is_open)
window.step_ended(0)
window.step_begins(1)
tf.compat.v2.profiler.experimental.start(own)
tf.profiler.experimental.stop()
print("left in the middle:", window.step_ended(1))
with tf.profiler.experimental.Profile(own):
    pass
window.close(1)
"""


class Recorded(NamedTuple):
    """A training of twelve steps, of which tf.profiler recorded five."""

    own: SpanRecords
    profile: TfProfile
    notes: list[str]
    training: dict[str, object]


@pytest.fixture(scope="module", params=["tensorflow 2.15", "tensorflow 2.17"])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorded]:
    python = "horovod_python" if request.param.endswith("2.15") else "tensorflow_python"
    interpreter: Path = request.getfixturevalue(python)
    run_dir = tmp_path_factory.mktemp("run")
    paths = ArtifactPaths(run_dir)
    paths.rank_folder(annotated.RANK).mkdir(parents=True)
    _run(interpreter, TRAINING, run_dir, **{rank_env.TF_STEPS: f"{STEPS[0]}-{STEPS[-1]}"})
    own = read_span_file(paths.spans(annotated.RANK), annotated.RANK)
    folder = paths.tf_profile(annotated.RANK)
    training = paths.training(annotated.RANK)
    yield Recorded(
        own,
        read_tf_profile(folder, annotated.RANK, own.anchors, None),
        annotated.notes(run_dir / "state"),
        json.loads(training.read_text()) if training.exists() else {},
    )


def _run(
    interpreter: Path, code: str, run_dir: Path, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    folder = ArtifactPaths(run_dir).rank_folder(annotated.RANK)
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [str(interpreter), "-c", code, *arguments],
        env=annotated.environ(folder, run_dir / "state", **quiet, **more),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_file_holds_the_steps_that_were_asked_for_at_the_times_of_our_own_records(
    recorded: Recorded,
) -> None:
    state = recorded.profile.state
    assert (state.state, state.reason, recorded.notes) == (manifest.OK, "", [])
    assert state.clock_bound_ns is not None and state.clock_bound_ns < 1_000_000

    seen = recorded.profile.steps
    assert seen[c.STEP].tolist() == list(STEPS)
    own = recorded.own.spans
    own = own[(own[c.KIND] == c.STEP_KIND) & own[c.STEP].isin(list(STEPS))]
    # the marker is opened just before the step begins, and closed just after it ended
    before = own[c.START_NS].to_numpy() - seen[c.START_NS].to_numpy()
    after = seen[c.END_NS].to_numpy() - own[c.END_NS].to_numpy()
    assert (before > -state.clock_bound_ns).all() and np.median(before) < 5_000_000
    assert (after > -state.clock_bound_ns).all() and np.median(after) < 5_000_000


def test_operations_lie_in_the_recorded_steps_and_have_the_phases_of_a_training(
    recorded: Recorded,
) -> None:
    operations = _operations(recorded)
    phases = operations.groupby(c.PHASE, observed=True).size()
    assert set(phases.index) >= {c.FORWARD, c.BACKWARD, c.OPTIMIZER, c.INPUT}
    length = operations[c.END_NS] - operations[c.START_NS]
    other = operations[c.PHASE].isin([c.OTHER]) | operations[c.PHASE].isna()
    assert length[other].sum() < 0.02 * length.sum()
    inside = operations[operations[c.PHASE] == c.BACKWARD]
    for step in recorded.profile.steps.itertuples():
        during = inside[inside[c.START_NS].between(step.start_ns, step.end_ns)]
        assert len(during[during[c.NAME].str.endswith(":MatMul")]) == 3  # of two layers


def test_the_wait_for_a_batch_is_input_and_what_makes_the_batch_is_nothing_else(
    recorded: Recorded,
) -> None:
    waits = _operations(recorded)
    waits = waits[waits[c.PHASE] == c.INPUT]
    own = recorded.own.spans
    own = own[(own[c.PHASE] == c.INPUT) & own[c.STEP].isin(list(STEPS)[1:])]
    # the batch of the first step was fetched before the recording began
    assert len(waits) in (len(own), len(own) + 1)  # that of the step after may be there
    length = (waits[c.END_NS] - waits[c.START_NS]).iloc[: len(own)].to_numpy()
    assert np.median(length) == pytest.approx(
        np.median((own[c.END_NS] - own[c.START_NS]).to_numpy()), rel=0.1
    )
    assert (length > WAIT_MS * 1e6).all()
    # what makes a batch is no part of the forward pass
    makers = recorded.profile.spans
    makers = makers[makers[c.NAME].isin(["truediv:RealDiv", "PyFunc:PyFunc"])]
    assert set(makers[c.KIND]) <= {c.HOST}
    assert makers[c.PHASE].isna().all()


def test_starting_and_stopping_are_told_as_times_in_which_the_profiler_was_at_work(
    recorded: Recorded,
) -> None:
    own = recorded.own.spans
    busy = own[own[c.KIND] == c.BUSY]
    assert busy[c.NAME].tolist() == ["tf.profiler start", "tf.profiler stop"]
    first, last = _own_step(own, STEPS[0]), _own_step(own, STEPS[-1])
    assert busy[c.END_NS].iloc[0] <= first[c.START_NS]
    assert busy[c.START_NS].iloc[1] >= last[c.END_NS]


def test_a_profiler_of_the_training_comes_first_whoever_was_there_before(
    horovod_python: Path, tmp_path: Path
) -> None:
    own, ours = tmp_path / "own", tmp_path / "ours"
    done = _run(horovod_python, OTHERS, tmp_path, str(own), str(ours))
    assert done.stdout.splitlines() == [
        "left at once: True False",
        "runs: True",
        "left in the middle: True",
    ]
    notes = annotated.notes(tmp_path / "state")
    assert notes == [
        "tf.profiler: no step of 0-3 was recorded: another profiler of the training was running",
        "tf.profiler: 0-0 only: the training started a profiler of its own",
    ]
    assert len(list(ours.rglob("*.xplane.pb"))) == 1
    assert list(own.rglob("*.xplane.pb"))


def _operations(recorded: Recorded) -> pd.DataFrame:
    spans = recorded.profile.spans
    operations: pd.DataFrame = spans[spans[c.KIND] == c.EXECUTOR_OP]
    return operations


def _own_step(own: pd.DataFrame, number: int) -> pd.Series:
    found: pd.Series = own[(own[c.KIND] == c.STEP_KIND) & (own[c.STEP] == number)].iloc[0]
    return found
