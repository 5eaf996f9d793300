"""The recorder in a real training: TensorFlow, Horovod and the package nvtx are heard, no other."""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcprof.annotate import nvtx_recorder
from hpcprof.artifacts import nvtx_format
from hpcprof.artifacts.paths import ArtifactPaths
from tests.unit import launching
from tests.unit.nvtx_record import Seen, read

pytestmark = pytest.mark.e2e

STEPS = 8
BATCH = 16
# one Horovod rank that is killed at its end; a forked and a started process use NVTX beside it
TRAINING = f"""
import os, signal, subprocess, sys
import tensorflow as tf
import horovod.tensorflow as hvd
import nvtx
from hpcprof import annotate

hvd.init()
worker = "import nvtx\\nwith nvtx.annotate('of a worker', domain='mine'): pass"
subprocess.run([sys.executable, "-c", worker], check=True)
if os.fork() == 0:
    with nvtx.annotate("of a fork", domain="mine"):
        os._exit(0)
os.wait()

weights = tf.Variable(tf.ones([4, 8]), name="weights")

@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(x, weights) ** 2)
    gradient = hvd.allreduce(tape.gradient(loss, weights), name="gradient")
    weights.assign_sub(0.001 * gradient)
    return loss

for step in range({STEPS}):
    with annotate.step():
        with nvtx.annotate("of the script", domain="mine"):
            train(tf.ones([{BATCH}, 4]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass(frozen=True)
class Recorded:
    """What a run of the training left."""

    seen: list[Seen]
    manifest: dict[str, Any]

    def of(self, domain: str) -> list[Seen]:
        return [one for one in self.seen if one.domain == domain]


@pytest.fixture(scope="module")
def recorded(horovod_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    library = Path(nvtx_recorder.__file__).with_name("native") / nvtx_format.LIBRARY
    if not library.exists():
        pytest.skip("the recorder is not compiled (no C compiler)")
    folder = tmp_path_factory.mktemp("recorder")
    run_dir = folder / "run"
    launching.write_run_json(run_dir, op_steps="3-5", hooks=False)
    done = launching.launch(
        run_dir,
        [str(horovod_python), "-c", TRAINING],
        *("--profiler", "none"),
        env=launching.environ(folder, TF_CPP_MIN_LOG_LEVEL="3"),
    )
    assert done.returncode in (-9, 137), done.stderr
    paths = ArtifactPaths(run_dir)
    return Recorded(read(paths.nvtx_record(3)), json.loads(paths.manifest(3).read_text()))


def test_every_allreduce_of_every_step_is_recorded_with_its_bytes(recorded: Recorded) -> None:
    allreduces = recorded.of(nvtx_format.HOROVOD_DOMAIN)
    assert {(one.name, one.kind, one.value) for one in allreduces} == {
        ("HorovodAllreduce", nvtx_format.START_END, 4 * 4 * 8)
    }
    assert len(allreduces) == STEPS
    assert all(one.end_ns > one.start_ns for one in allreduces)


def test_operations_are_named_in_the_wanted_steps_only(recorded: Recorded) -> None:
    operations = collections.Counter(one.name for one in recorded.of(nvtx_format.TENSORFLOW_DOMAIN))
    matmul = [name for name in operations if name.endswith(":MatMul")]
    assert any("gradient_tape" in name for name in matmul)
    assert {operations[name] for name in matmul} == {3}  # steps 3, 4 and 5


def test_the_trainings_own_ranges_are_recorded_and_those_of_its_children_are_not(
    recorded: Recorded,
) -> None:
    mine = recorded.of("mine")
    assert {one.name for one in mine} == {"of the script"}
    assert len(mine) == STEPS
    operations = recorded.of(nvtx_format.TENSORFLOW_DOMAIN)
    first, last = mine[3].start_ns, mine[5].end_ns
    assert all(first <= one.start_ns <= one.end_ns <= last for one in operations)


def test_our_own_steps_are_in_our_spans_and_not_here_too(recorded: Recorded) -> None:
    assert recorded.of("hpcprof") == []
    assert recorded.manifest["recorder"] == {"name": "nvtx"}
    assert recorded.manifest["warnings"] == []


def test_a_python_that_is_not_the_training_leaves_no_record(
    horovod_python: Path, tmp_path: Path
) -> None:
    code = "import nvtx\nwith nvtx.annotate('x', domain='y'): pass\n"
    code += "print(open('/proc/self/maps').read())"
    launching.write_run_json(tmp_path / "run")
    env = launching.environ(tmp_path)
    words = [str(horovod_python), "-c", code]
    done = launching.launch(tmp_path / "run", words, "--profiler", "none", env=env)
    assert nvtx_format.LIBRARY in done.stdout  # NVTX did load it
    assert not ArtifactPaths(tmp_path / "run").nvtx_record(3).exists()
    child = f"import subprocess, tensorflow; subprocess.run({words!r})"
    words = [str(horovod_python), "-c", child]
    done = launching.launch(tmp_path / "child", words, "--profiler", "none", env=env)
    assert "python" in done.stdout
    assert nvtx_format.LIBRARY not in done.stdout  # it left again: the parent is the training
