"""The memory events of a host plane of tf.profiler: what allocators gave out and took back.

TensorFlow's BFC allocator writes an event per allocation and one per return, with how full it was
after each. A return carries the address only, so blocks are found by it. Times stay those of the
file. Allocators of other kinds (``TF_GPU_ALLOCATOR=cuda_malloc_async``) write nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hpcprof.readers.op_names import classify
from hpcprof.readers.xplane_file import Ints, Plane
from hpcprof.readers.xplane_nesting import background_runs, operations
from hpcprof.trace.columns import COMPUTE_PHASE, INPUT
from hpcprof.trace.memory import BLOCK_COLUMNS, LEVEL_COLUMNS, MemoryRecord
from hpcprof.trace.model import Training

_TAKEN, _GIVEN_BACK = "MemoryAllocation", "MemoryDeallocation"
_NO_OP = "(null)"
_WHOLE_FUNCTION = "__"  # "__inference_train_17": compiled by XLA, it runs as one operation
# made to receive what another device sends: the batch from the host, before all else
_RECEIVED = "dynamic"


def read_memory(plane: Plane, training: Training | None) -> MemoryRecord:
    """Blocks and levels of a host plane; without rows where no allocator wrote anything."""
    positions = plane.named(_TAKEN, _GIVEN_BACK)
    if not len(positions):
        return MemoryRecord()
    order = np.argsort(plane.events.start_ns[positions], kind="stable")
    positions = positions[order]
    times = plane.events.start_ns[positions]
    stats = [plane.stats_of(position) for position in positions.tolist()]
    taken = np.isin(plane.events.name[positions], plane.codes([_TAKEN]))
    around = _Around(plane, positions)
    phases = _phases(plane, stats, training)
    background = frozenset(background_runs(plane).tolist())
    live: dict[tuple[str, int], dict[str, Any]] = {}
    blocks: list[dict[str, Any]] = []
    for row, (time, is_taken, event) in enumerate(zip(times.tolist(), taken, stats, strict=True)):
        key = (str(event.get("allocator_name", "")), int(event.get("addr", 0)))
        if not is_taken:
            block = live.pop(key, None)
            if block is None:
                block = _block(event, int(times[0]), is_older=True)
                blocks.append(block)
            block.update(end_ns=time, is_freed=True, freed_in=phases.get(around.op[row], ""))
            continue
        op = str(event.get("tf_op", ""))
        block = _block(event, time, is_older=False)
        block["op"] = "" if op == _NO_OP else op
        block["phase"] = INPUT if event.get("region_type") == _RECEIVED else phases.get(op, "")
        block["op_end_ns"] = around.end_ns[row]
        block["is_background"] = int(event.get("id", 0)) in background
        live[key] = block
        blocks.append(block)
    for block in live.values():
        block["end_ns"] = int(times[-1]) + 1
    return MemoryRecord(
        pd.DataFrame(blocks, columns=pd.Index(BLOCK_COLUMNS)), _levels(times, stats)
    )


class _Around:
    """The operation of a thread at or before each of these events: its path, and its end.

    ``op``: which of the thread's began last, so it is the one that lets go of a block. ``end_ns``
    is 0 where that had ended before the event.
    """

    def __init__(self, plane: Plane, positions: Ints) -> None:
        ops = operations(plane)
        line, start, end = (column[ops] for column in (plane.events.line, *_times(plane)))
        here = plane.events.line[positions]
        times = plane.events.start_ns[positions]
        # operations are in order of line and start, so that one search finds the last one before
        span = int(max(times.max(), start.max(initial=0))) + 1
        found = np.searchsorted(line * span + start, here * span + times, side="right") - 1
        is_there = (found >= 0) & (line[np.maximum(found, 0)] == here) if len(ops) else found >= 0
        paths = [plane.names[code].partition(":")[0] for code in plane.events.name[ops]]
        self.op = [
            paths[row] if there else ""
            for row, there in zip(found.tolist(), is_there.tolist(), strict=True)
        ]
        self.end_ns = [
            int(end[row]) if there and end[row] >= time else 0
            for row, there, time in zip(
                found.tolist(), is_there.tolist(), times.tolist(), strict=True
            )
        ]


def _times(plane: Plane) -> tuple[Ints, Ints]:
    return plane.events.start_ns, plane.events.end_ns


def _phases(plane: Plane, stats: list[dict[str, Any]], training: Training | None) -> dict[str, str]:
    """The phase of each operation by its path; the plane's operations tell their types as well."""
    names = {
        plane.names[code].partition(":")[0]: plane.names[code]
        for code in np.unique(plane.events.name[operations(plane)]).tolist()
    }
    for event in stats:
        op = str(event.get("tf_op", _NO_OP))
        if op != _NO_OP:
            names.setdefault(op, f"{op}:")
    classes = classify(names.values(), training)
    phases = {path: each.phase for path, each in zip(names, classes, strict=True)}
    whole = {path: COMPUTE_PHASE for path in names if path.startswith(_WHOLE_FUNCTION)}
    return {**phases, **whole}


def _block(event: dict[str, Any], start_ns: int, *, is_older: bool) -> dict[str, Any]:
    return {
        "start_ns": start_ns,
        "end_ns": start_ns,
        "allocator": str(event.get("allocator_name", "")),
        "bytes": int(event.get("allocation_bytes", 0)),
        "requested_bytes": int(event.get("requested_bytes", 0)),
        "op": "",
        "phase": "",
        "op_end_ns": 0,
        "freed_in": "",
        "is_background": False,
        "is_older": is_older,
        "is_freed": False,
    }


def _levels(times: Ints, stats: list[dict[str, Any]]) -> pd.DataFrame:
    levels: pd.DataFrame = pd.DataFrame(
        {
            "time_ns": times,
            "allocator": [str(event.get("allocator_name", "")) for event in stats],
            "allocated_bytes": [int(event.get("bytes_allocated", 0)) for event in stats],
            "peak_bytes": [int(event.get("peak_bytes_in_use", 0)) for event in stats],
            "limit_bytes": [
                int(event.get("bytes_allocated", 0)) + int(event.get("bytes_available", 0))
                for event in stats
            ],
            "fragmentation_frac": [float(event.get("fragmentation", 0.0)) for event in stats],
        },
        columns=pd.Index(LEVEL_COLUMNS),
    )
    return levels
