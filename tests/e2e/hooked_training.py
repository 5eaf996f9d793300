"""Runs a training script that knows nothing of hpcprof, bare and under the launcher's hooks.

A script trains in several *cases* and prints a line for each: its name, CLOCK_MONOTONIC before and
after it, and a digest of what was learnt.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from hpcprof.artifacts import span_format
from tests.unit import annotated, launching

_RANK = "00003"  # as launching.environ has it
QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}

CASES = """
import hashlib, os, time
import numpy as np
import tensorflow as tf

def case(name):
    def run(train):
        tf.keras.utils.set_random_seed(3)
        start = time.monotonic_ns()
        learnt = train()
        end = time.monotonic_ns()
        content = b"".join(np.asarray(each).tobytes() for each in learnt)
        print("case", name, start, end, hashlib.sha1(content).hexdigest(), flush=True)
    return run

def slowly(batch):
    time.sleep(0.01)
    return batch

def data(rows=96):
    generator = np.random.default_rng(0)
    x = generator.random((rows, 16), dtype="float32")
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))

def slow_data():
    def delay(x, y):
        return tf.ensure_shape(tf.numpy_function(slowly, [x], tf.float32), (None, 16)), y
    return data().shuffle(50, seed=1).batch(8).map(delay)
"""


class Case(NamedTuple):
    """One case: its time and the digest of its weights, and the records that began in it."""

    start_ns: int
    end_ns: int
    digest: str
    records: list[annotated.Record]

    def named(self, name: str, kind: int = span_format.KIND_PHASE) -> list[annotated.Record]:
        """Records of a name, in order of time."""
        found = [each for each in self.records if each.name == name and each.kind == kind]
        return sorted(found, key=lambda each: each.start_ns)

    @property
    def steps(self) -> list[annotated.Record]:
        """The steps, in order of time."""
        return self.named("step", span_format.KIND_STEP)


class Hooked(NamedTuple):
    """What the training left under the launcher."""

    cases: dict[str, Case]
    training: dict[str, Any]
    warnings: list[str]


def bare(python: Path, script: str, scratch: Path) -> dict[str, str]:
    """Run the script without the launcher: the digest of each case."""
    path = scratch / "train.py"
    path.write_text(script)
    done = subprocess.run(
        [python, path],
        env=launching.environ(scratch, **QUIET),
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: case.digest for name, case in _cases(done.stdout, []).items()}


def hooked(python: Path, script: str, scratch: Path) -> Hooked:
    """Run it under the launcher, without a profiler."""
    path, run_dir = scratch / "train.py", scratch / "run"
    path.write_text(script)
    launching.write_run_json(run_dir)
    env = launching.environ(scratch, **QUIET)
    command = [str(python), str(path)]
    done = launching.launch(run_dir, command, "--profiler", "none", env=env)
    assert done.returncode == 0, done.stderr
    folder = run_dir / "ranks" / _RANK
    return Hooked(
        _cases(done.stdout, annotated.records(folder)),
        json.loads((folder / "training.json").read_text()),
        launching.manifest(run_dir)["warnings"],
    )


def _cases(stdout: str, records: list[annotated.Record]) -> dict[str, Case]:
    cases = {}
    for line in stdout.splitlines():
        words = line.split()
        if words[:1] == ["case"]:
            start, end = int(words[2]), int(words[3])
            own = [each for each in records if start <= each.start_ns <= end]
            cases[words[1]] = Case(start, end, words[4], own)
    return cases
