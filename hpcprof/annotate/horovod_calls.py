"""What the training asked of Horovod, counted in Python; see ``horovod`` in training_record.

Inside a ``tf.function`` a call is counted when it is traced, not each time that the graph runs:
zero means that no graph of this process contains one. Adds no collective, and imports nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, Mapping

# defaults of Horovod 0.28.1 (horovod/common/operations.cc); what is not here has none
_DEFAULTS = {
    "HOROVOD_FUSION_THRESHOLD": str(128 * 1024 * 1024),
    "HOROVOD_CYCLE_TIME": "1",  # ms; 0 with HOROVOD_ENABLE_XLA_OPS
    "HOROVOD_CACHE_CAPACITY": "1024",
    "HOROVOD_AUTOTUNE": "0",
}
_OTHER_SETTINGS = (
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_ELASTIC",
    "HOROVOD_ENABLE_XLA_OPS",
    "HOROVOD_GPU_OPERATIONS",
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_NUM_NCCL_STREAMS",
    "HOROVOD_TIMELINE",
)
_BACKENDS = ("nccl", "mpi", "gloo", "ccl")
_MODULE = "horovod.tensorflow"

GRADIENTS = "gradients"  # given to Horovod by its own optimizer or tape
ALLREDUCES = "allreduces"  # others of more than one number: averaged by hand, or metrics
SCALARS = "scalars"  # others of one number: no gradients of a model
GATHERS = "gathers"  # allgather, reducescatter and alltoall, but not of gradients
BROADCASTS = "broadcasts"  # of floating point values, so of weights
OPTIMIZERS, TAPES = "optimizers", "tapes"
_COUNTED = (GRADIENTS, ALLREDUCES, SCALARS, GATHERS, BROADCASTS, OPTIMIZERS, TAPES)

_lock = threading.Lock()  # replicas trace in threads of their own
_counts: dict[str, int] | None = None  # None: nobody counts
_compression: str | None = None
_last_known: tuple[int, int] | None = None


def begin_counting() -> None:
    """From now on calls are counted: a zero means that there was none."""
    global _counts
    if _counts is None:
        _counts = dict.fromkeys(_COUNTED, 0)


def count(name: str, calls: int = 1) -> None:
    """Add ``calls`` to one of the counts named above."""
    with _lock:
        if _counts is not None:
            _counts[name] += calls


def counts() -> Mapping[str, int] | None:
    """The counts until now; None when nobody counts."""
    with _lock:
        return None if _counts is None else dict(_counts)


def saw_compression(name: str) -> None:
    """The class by which Horovod's optimizer or tape compresses what it sends."""
    global _compression
    _compression = name


def size_and_rank() -> tuple[int, int] | None:
    """``hvd.size()`` and ``hvd.rank()``; None when Horovod is not there or was not initialised.

    After its end, which may come before ours, what they were.
    """
    global _last_known
    module = sys.modules.get(_MODULE)
    if module is not None:
        with contextlib.suppress(Exception):  # not initialised, or shut down already
            _last_known = int(module.size()), int(module.rank())
    return _last_known


def description() -> dict[str, Any] | None:
    """``horovod`` of the training record as it is now; None when Horovod is not initialised."""
    known = size_and_rank()
    if known is None:
        return None
    size, rank = known
    found: dict[str, Any] = {"size": size, "rank": rank, "compression": _compression}
    found.update(counts() or {})
    found["settings"] = _settings()
    found["backends"] = _backends()
    return found


def version(package: str) -> str:
    """``__version__`` of a loaded package; "" when it is not loaded, or has none."""
    return str(getattr(sys.modules.get(package), "__version__", ""))


def _settings() -> dict[str, str]:
    given = {
        name: os.environ[name] for name in (*_DEFAULTS, *_OTHER_SETTINGS) if name in os.environ
    }
    if version("horovod") != "0.28.1":
        return given
    defaults = {name: f"{value} (default)" for name, value in _DEFAULTS.items()}
    return {**defaults, **given}


def _backends() -> list[str]:
    """What Horovod was built with."""
    module = sys.modules.get(_MODULE)
    found = []
    for name in _BACKENDS:
        try:
            if getattr(module, f"{name}_built")():
                found.append(name)
        except Exception:  # another version of Horovod
            continue
    return found
