"""Real TensorFlow and Horovod scripts that know nothing of hpcprof."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcprof.artifacts import rank_env, rank_state
from tests.unit import annotated, launching

pytestmark = pytest.mark.e2e

TRAINING = """
import sys
import threading

import numpy as np
import tensorflow as tf

lock = threading.Lock()


def reads_a_file_that_never_comes():
    lock.acquire()


def waits_for_the_input(seconds):
    reader = threading.Thread(target=reads_a_file_that_never_comes)
    reader.start()
    reader.join(seconds)


model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.zeros((64, 8), "float32"), np.zeros((64, 1), "float32")
model.fit(x, y, batch_size=8, verbose=0)
lock.acquire()
waits_for_the_input(8)
lock.release()
history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
print("epochs", len(history.history["loss"]), flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("hooks", "said", "steps"),
    [
        (True, "no step for 2 s after step 7; ", 24),
        (False, "no Python thread has moved for 2 s; ", 0),
    ],
)
def test_a_training_that_hangs_for_a_while_says_where_and_goes_on(
    tensorflow_python: Path, tmp_path: Path, *, hooks: bool, said: str, steps: int
) -> None:
    run_dir = tmp_path / "run"
    launching.write_run_json(run_dir, hang_after_s=2, hooks=hooks)
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    env = launching.environ(tmp_path, CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2")
    done = launching.launch(
        run_dir, [str(tensorflow_python), str(script)], "--profiler", "none", env=env
    )

    assert done.returncode == 7, done.stderr
    assert done.stdout == "epochs 2\n"
    stacks = (run_dir / "ranks/00003/stacks.txt").read_text()
    assert " in reads_a_file_that_never_comes\n" in stacks
    assert " in waits_for_the_input\n" in stacks
    assert f"hpcprof: rank 3: {said}" in done.stderr
    spans = run_dir / "ranks/00003/spans.bin"
    assert spans.exists() == hooks
    assert len(annotated.steps(spans.parent) if hooks else ()) == steps
    assert launching.manifest(run_dir)["exit_code"] == 7


ALONE = """
import horovod.tensorflow as hvd
hvd.init()
with annotate.step():
    pass
print(hvd.size())
"""


def test_a_real_horovod_that_is_alone_in_a_step_of_four_is_told(
    horovod_python: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    env = annotated.environ(tmp_path, state, **{rank_env.WORLD_SIZE: "4"})
    env |= {"TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_CONTROLLER": "gloo"}
    env |= {"HOROVOD_CPU_OPERATIONS": "gloo", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [horovod_python, "-c", annotated.PREAMBLE + ALONE],
        env={name: value for name, value in env.items() if not name.startswith("SLURM_")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "Horovod sees 1 rank(s), the job step has 4: the ranks train alone" in done.stderr
    assert rank_state.find(state, rank_state.HOROVOD_SIZE) == "1"
