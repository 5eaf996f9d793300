"""TensorFlow names its operations in some steps: the same ones under nsys and our recorder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from hpcprof.annotate import nvtx_recorder
from hpcprof.artifacts import nvtx_format
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers import find_tools, read_rank
from hpcprof.trace import Trace, check_spans
from tests.unit import launching

pytestmark = pytest.mark.e2e

RANK = 3  # launching.environ's
STEPS, FIRST, LAST = 12, 4, 8
WINDOW = f"{FIRST}-{LAST}"
# a custom gradient and a tf.data function, of which no name tells what they are
TRAINING = f"""
import tensorflow as tf

weights = tf.Variable(tf.ones([64, 32]), name="weights")
last = tf.Variable(tf.ones([32, 10]), name="last")
optimizer = tf.keras.optimizers.Adam()

@tf.custom_gradient
def costly(values):
    def gradient(upstream):
        square = tf.matmul(values, values, transpose_a=True)
        return upstream + 1e-30 * tf.reduce_sum(tf.linalg.matmul(square, square))
    return tf.identity(values), gradient

@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        hidden = costly(tf.nn.relu(tf.matmul(x, weights)))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.matmul(hidden, last))
        loss = tf.reduce_mean(losses)
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [weights, last]), 1.0)
    optimizer.apply_gradients(zip(gradients, [weights, last]))
    return loss

def halved(x, y):
    return tf.cumsum(x) / 2.0, y

data = tf.data.Dataset.from_tensor_slices((tf.ones([256, 64]), tf.zeros([256], tf.int32)))
for x, y in data.repeat().map(halved).batch(16).take({STEPS}):
    train(x, y)
"""


@dataclass(frozen=True)
class Recorded:
    """The same training under our recorder and under nsys."""

    recorder: Trace
    nsys: Trace

    def operations(self, which: str) -> pd.DataFrame:
        spans = getattr(self, which).spans
        found: pd.DataFrame = spans[(spans["kind"] == "op") & (spans["source"] == which)]
        return found


@pytest.fixture(scope="module", params=["horovod_python", "keras3_python"])
def recorded(
    request: pytest.FixtureRequest, nsys: Path, tmp_path_factory: pytest.TempPathFactory
) -> Recorded:
    if not Path(nvtx_recorder.__file__).with_name("native").joinpath(nvtx_format.LIBRARY).exists():
        pytest.skip("the recorder is not compiled (no C compiler)")
    python: Path = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("ops")
    (folder / "t").mkdir()
    return Recorded(trained(python, folder, "none", nsys), trained(python, folder, "nsys", nsys))


def trained(python: Path, folder: Path, profiler: str, nsys: Path) -> Trace:
    """The training's rank, as collect reads it."""
    run_dir = folder / profiler
    settings = {"nsys_path": str(nsys), "nsys_trace": ["nvtx"]}
    launching.write_run_json(run_dir, op_steps=WINDOW, **settings)
    env = launching.environ(folder / "t", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    command = [str(python), "-c", TRAINING]
    done = launching.launch(run_dir, command, "--profiler", profiler, env=env)
    assert done.returncode == 0, done.stderr
    work = folder / "work"
    work.mkdir(exist_ok=True)
    trace = read_rank(ArtifactPaths(run_dir), RANK, work, find_tools(str(nsys)))
    check_spans(trace.spans)
    return trace


def counts(operations: pd.DataFrame) -> dict[tuple[int, str, str], int]:
    """How often each operation ran in each step and phase.

    Without the handing over of results, which a tf.data function does under the same names.
    """
    operations = operations[~operations["name"].astype(str).str.endswith(":_Retval")]
    keys = [operations[column].astype(str) for column in ("step", "name", "phase")]
    found: dict[tuple[int, str, str], int] = operations.groupby(keys).size().to_dict()
    return found


def test_operations_are_named_in_the_wanted_steps_and_in_no_other(recorded: Recorded) -> None:
    for which in ("recorder", "nsys"):
        steps = recorded.operations(which)["step"]
        assert sorted(steps.unique()) == list(range(FIRST, LAST + 1))
        info = getattr(recorded, which).rank
        assert info.sources[which].state == "OK"
        assert info.training is not None
        assert info.training.op_steps == WINDOW


def test_nsys_and_the_recorder_see_the_same_operations_in_the_same_phases(
    recorded: Recorded,
) -> None:
    by_recorder, by_nsys = (counts(recorded.operations(which)) for which in ("recorder", "nsys"))
    assert by_recorder == by_nsys
    assert len(by_recorder) > 50 * (LAST - FIRST + 1)


def test_every_operation_of_a_step_has_the_phase_that_it_serves(recorded: Recorded) -> None:
    operations = recorded.operations("recorder")
    assert set(operations["phase"]) == {"forward", "backward", "optimizer"}
    matmuls = operations[operations["name"].astype(str).str.endswith(":MatMul")]
    phases = matmuls.groupby(matmuls["phase"].astype(str)).size().to_dict()
    steps = LAST - FIRST + 1
    # two layers; their gradients by weights and by values, and the custom gradient's two
    assert phases == {"forward": 2 * steps, "backward": (3 + 2) * steps}
    updates = operations[operations["phase"] == "optimizer"]["name"].astype(str)
    assert updates.str.contains("clip_by_global_norm|global_norm").any()
    assert updates.str.contains("AssignSubVariableOp").any()


def test_the_pipelines_functions_are_no_phase_of_a_step(recorded: Recorded) -> None:
    for which in ("recorder", "nsys"):
        spans = getattr(recorded, which).spans
        work = spans[spans["name"].astype(str).str.endswith(":Cumsum")]
        assert len(work) >= 16  # of one batch; tf.data reads some ahead, before the window
        assert set(work["kind"]) == {"host"}
        assert work["phase"].isna().all()


def test_tensorflow_without_nvtx_says_why_its_operations_have_no_names(
    tensorflow_python: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    launching.write_run_json(run_dir, op_steps="1-2")
    env = launching.environ(tmp_path, TF_CPP_MIN_LOG_LEVEL="3")
    command = [str(tensorflow_python), "-c", TRAINING]
    done = launching.launch(run_dir, command, "--profiler", "none", env=env)
    assert done.returncode == 0, done.stderr
    record = json.loads(ArtifactPaths(run_dir).training(RANK).read_text())
    assert record["steps"] == STEPS
    assert record["op_steps"] == (
        "not available: this TensorFlow is not built for CUDA and so holds no NVTX"
    )
