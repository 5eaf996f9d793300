"""Where the set-up scripts put the tools that tests use.

The scripts write `KEY=VALUE` lines to `.hpcprof-test-env` in the clone; an environment variable
of the same name goes before. Whatever is not there is None, and its tests skip.
"""

from __future__ import annotations

import os
from pathlib import Path

RECORD = Path(__file__).resolve().parents[2] / ".hpcprof-test-env"


def train_python() -> Path | None:
    """Interpreter with TensorFlow 2.15, Horovod (MPI, Gloo, NVTX), nvtx, mpi4py and psutil."""
    return _existing("HPCPROF_TEST_TRAIN_PYTHON")


def tensorflow_python() -> Path | None:
    """Interpreter with a current TensorFlow (Keras 3) and nothing else."""
    return _existing("HPCPROF_TEST_TF_PYTHON")


def keras3_python() -> Path | None:
    """Interpreter with TensorFlow 2.17 (Keras 3, executor with NVTX ranges), Horovod and nvtx."""
    return _existing("HPCPROF_TEST_KERAS3_PYTHON")


def nsys() -> Path | None:
    """The Nsight Systems command, with an importer beside it."""
    return _existing("HPCPROF_TEST_NSYS")


def recorded() -> dict[str, str]:
    """All pairs of the record; empty when the set-up has not run."""
    if not RECORD.exists():
        return {}
    lines = (line.partition("=") for line in RECORD.read_text().splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in lines}


def _existing(key: str) -> Path | None:
    value = os.environ.get(key) or recorded().get(key)
    return Path(value) if value and Path(value).exists() else None
