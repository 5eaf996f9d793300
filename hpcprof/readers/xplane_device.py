"""What a device plane of tf.profiler says: kernels and copies. Times stay those of the file.

Only the lines of streams are read; TensorFlow derives the others ("XLA Ops", "Steps") from them.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.readers.collective_names import collective_op, is_nccl_kernel
from hpcprof.readers.nsys_database import NULL
from hpcprof.readers.op_names import classify
from hpcprof.readers.xplane_file import Ints, Plane
from hpcprof.readers.xplane_nesting import is_operation
from hpcprof.trace.columns import (
    COLLECTIVE_ACTIVITY,
    COMPUTE,
    COMPUTE_PHASE,
    COPY,
    KERNEL,
    MEMCPY,
    MEMSET,
    TF_PROFILE,
)
from hpcprof.trace.frame import coded, nullable_int, spans_frame
from hpcprof.trace.model import Training

_DEVICE_RE = re.compile(r"\A/device:GPU:([0-9]+)")
_STREAM_RE = re.compile(r"\AStream #([0-9]+)")
# "MemcpyH2D" and the like; CUPTI's own names in older files
_COPY_NAMES = {
    "MemcpyH2D": "memcpy HtoD",
    "MemcpyD2H": "memcpy DtoH",
    "MemcpyD2D": "memcpy DtoD",
    "MemcpyP2P": "memcpy PtoP",
}
_SIZE_RE = re.compile(r"size:([0-9]+)")


def gpu_planes(planes: tuple[Plane, ...]) -> list[tuple[Plane, int | None]]:
    """The GPUs on which anything ran, in the order of their numbers, and which replica each is.

    A process on several devices trains one replica per device; one without kernels is none.
    """
    found = [
        (int(match.group(1)), plane)
        for plane in planes
        if (match := _DEVICE_RE.match(plane.name)) and len(plane.events.name)
    ]
    numbers = itertools.count()
    ordered = [plane for _, plane in sorted(found, key=lambda pair: pair[0])]
    return [(plane, next(numbers) if _has_kernels(plane) else None) for plane in ordered]


def _has_kernels(plane: Plane) -> bool:
    streams = [line for line, name in enumerate(plane.lines) if _STREAM_RE.match(name)]
    used = np.unique(plane.events.name[np.isin(plane.events.line, streams)])
    return any(_kind(plane.names[code]) == KERNEL for code in used.tolist())


def read_device(plane: Plane, replica: int | None, training: Training | None) -> pd.DataFrame:
    """Spans of one GPU, with the phases of the operations that launched them.

    Which physical GPU it is the file does not say.
    """
    streams = [match and match.group(1) for match in map(_STREAM_RE.match, plane.lines)]
    is_stream = np.array([stream is not None for stream in streams], dtype=bool)
    positions = np.flatnonzero(is_stream[plane.events.line])
    codes, used = pd.factorize(plane.events.name[positions])
    names = [plane.names[code] for code in used]
    kinds = [_kind(name) for name in names]
    correlations = plane.int_stat(positions, "correlation_id", NULL)
    sizes = _sizes(plane, positions, np.array([kind != KERNEL for kind in kinds])[codes])
    return spans_frame(
        {
            "start_ns": plane.events.start_ns[positions],
            "end_ns": plane.events.end_ns[positions],
            "kind": coded(codes, kinds),
            "activity": coded(codes, [_activity(*pair) for pair in zip(names, kinds, strict=True)]),
            "name": coded(codes, [_COPY_NAMES.get(name, name) for name in names]),
            "lane": coded(plane.events.line[positions], [s and f"stream {s}" for s in streams]),
            "replica": replica,
            "phase": _phases(plane, positions, training),
            "bytes": nullable_int(sizes, sizes == NULL, "Int64"),
            "op": coded(codes, [collective_op(n) if is_nccl_kernel(n) else None for n in names]),
            "correlation": nullable_int(correlations, correlations == NULL, "Int64"),
            "source": TF_PROFILE,
        }
    )


def _phases(plane: Plane, positions: Ints, training: Training | None) -> Any:
    """The phase of the operation that each was launched by; null where none is named.

    What XLA compiled is in no phase of its own: its kernels carry names of XLA's.
    """
    texts = plane.text_stat(positions, "tf_op", "level 0", "annotation")
    codes, used = pd.factorize(np.array(texts, dtype=object))
    names = [str(text).partition("#")[0] for text in used]
    is_op = [is_operation(name) for name in names]
    classes = classify([name for name, op in zip(names, is_op, strict=True) if op], training)
    of_ops = iter([None if each.is_background else each.phase for each in classes])
    phases = [
        next(of_ops) if op else COMPUTE_PHASE if name.startswith("XlaModule") else None
        for name, op in zip(names, is_op, strict=True)
    ]
    return coded(codes, phases)


def _kind(name: str) -> str:
    if name.startswith(("Memcpy", "memcpy")):
        return MEMCPY
    return MEMSET if name.startswith(("Memset", "memset")) else KERNEL


def _activity(name: str, kind: str) -> str:
    if kind != KERNEL:
        return COPY
    return COLLECTIVE_ACTIVITY if is_nccl_kernel(name) else COMPUTE


def _sizes(plane: Plane, positions: Ints, is_copy: Any) -> Ints:
    """Bytes of the copies, NULL for all others and where the file does not say."""
    sizes = np.full(len(positions), NULL, dtype=np.int64)
    for row in np.flatnonzero(is_copy).tolist():
        stats = plane.stats_of(int(positions[row]))
        text = str(stats.get("memcpy_details") or stats.get("memset_details") or "")
        if match := _SIZE_RE.search(text):
            sizes[row] = int(match.group(1))
    return sizes
