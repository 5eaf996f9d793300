"""Which event of a thread lies inside which other one, and whose work an operation is.

An operation carries no mark of who started it: it lies inside an ``ExecutorState::Process`` event,
whose id is that of the run of a function. Runs that tf.data made, to prepare the next batch on
threads of its own, are no part of the training step.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from hpcprof.readers.xplane_file import Ints, Plane

# "a/b/c:MatMul"; a type may begin with an underscore. C++ names have two colons, eager ones a blank
_OP_RE = re.compile(r"\A[\w.][\w.\-/\\>]*:_?[A-Z]\w*\Z")

# the training waits for a batch: in the graph or not; the second asks whether there is one as well
NEXT_BATCH = ("IteratorGetNextOp::DoCompute", "IteratorGetNextAsOptionalOp::DoCompute")
_PROCESS = "ExecutorState::Process"
_RUN = "FunctionRun"
_REMOTE_CALL = "RemoteCallOp"  # made by tf.data's iterators over several devices only
_DATA_RUN = "InstantiatedCapturedFunction::"  # a function given to tf.data: map, filter, generator
_DATA_THREAD = "tf_data"  # begin of the names of its threads
_NONE = -1


class Nested(NamedTuple):
    """Operations of a host plane and the waits for a batch, as positions in its events.

    ``parent``: row in this table of the operation that an operation lies in, -1 for none.
    ``is_wait``: one of NEXT_BATCH. ``is_background``: made by tf.data, on whatever thread.
    ``in_wait``: inside the wait for a batch, which is told as a whole.
    """

    position: Ints
    parent: Ints
    is_wait: np.ndarray[tuple[int], np.dtype[np.bool_]]
    is_background: np.ndarray[tuple[int], np.dtype[np.bool_]]
    in_wait: np.ndarray[tuple[int], np.dtype[np.bool_]]


def nested_operations(plane: Plane) -> Nested:
    """Find the operations and waits of a host plane. Reads every thread."""
    background = background_runs(plane)
    is_op = _are_operations(plane)
    processes = plane.named(_PROCESS)
    waits = plane.named(*NEXT_BATCH)
    positions = np.union1d(np.flatnonzero(is_op), np.concatenate([processes, waits]))
    parent = _parents(plane, positions)
    run = np.full(len(positions), _NONE, dtype=np.int64)
    for some in (processes, waits):
        run[np.searchsorted(positions, some)] = plane.int_stat(some, "id", _NONE)
    of_op = is_op[positions]
    is_wait = np.isin(positions, waits)
    row_of_op = np.full(len(positions), _NONE, dtype=np.int64)
    in_wait = np.zeros(len(positions), dtype=bool)
    kept = np.flatnonzero(of_op | is_wait)
    row_in_kept = np.full(len(positions), _NONE, dtype=np.int64)
    row_in_kept[kept] = np.arange(len(kept))
    for row, above in enumerate(parent.tolist()):  # parents come before their children
        if above == _NONE:
            continue
        if run[row] == _NONE:
            run[row] = run[above]
        in_wait[row] = in_wait[above] or is_wait[above]
        row_of_op[row] = row_in_kept[above] if row_in_kept[above] >= 0 else row_of_op[above]
    is_background = np.isin(run, background) & (run != _NONE)
    return Nested(
        positions[kept], row_of_op[kept], is_wait[kept], is_background[kept], in_wait[kept]
    )


def operations(plane: Plane) -> Ints:
    """Positions of all operations, those of tf.data too."""
    return np.flatnonzero(_are_operations(plane))


def _are_operations(plane: Plane) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([is_operation(name) for name in plane.names])[plane.events.name]


def is_operation(name: str) -> bool:
    """Whether this is how TensorFlow names the run of an operation: its path and its type."""
    return bool(_OP_RE.match(name))


def background_runs(plane: Plane) -> Ints:
    """Ids of the runs of functions that tf.data made."""
    codes = [code for code, name in enumerate(plane.names) if name.startswith(_DATA_RUN)]
    captured = np.flatnonzero(np.isin(plane.events.name, codes))
    runs = plane.named(_RUN)
    is_data_thread = np.array([line.startswith(_DATA_THREAD) for line in plane.lines], dtype=bool)
    calls = plane.named(_REMOTE_CALL)
    both = np.union1d(runs, calls)
    above = _parents(plane, both)
    is_remote = np.isin(both, calls)
    inside_call = np.isin(runs, both[(above >= 0) & is_remote[np.maximum(above, 0)]])
    mine = is_data_thread[plane.events.line[runs]] | inside_call
    ids = plane.int_stat(np.concatenate([captured, runs[mine]]), "id", _NONE)
    return np.unique(ids[ids != _NONE])


def _parents(plane: Plane, positions: Ints) -> Ints:
    """Row of the innermost event among ``positions`` that an event lies in; -1 for none."""
    line, start, end = (
        column[positions].tolist()
        for column in (plane.events.line, plane.events.start_ns, plane.events.end_ns)
    )
    parents = np.full(len(positions), _NONE, dtype=np.int64)
    stack: list[int] = []
    for row in range(len(positions)):
        while stack and (line[stack[-1]] != line[row] or end[stack[-1]] < end[row]):
            stack.pop()
        if stack and start[row] < end[stack[-1]]:
            parents[row] = stack[-1]
        stack.append(row)
    return parents
