"""What a host plane of tf.profiler says: operations, waits for a batch, collectives, our own marks.

Times stay those of the file. A collective is told from enqueue to done: TensorFlow only starts it
on the thread of the operation, and a callback ends it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hpcprof.artifacts import tf_profile_format as own
from hpcprof.readers.nsys_database import NULL
from hpcprof.readers.op_names import classify
from hpcprof.readers.xplane_file import Ints, Plane
from hpcprof.readers.xplane_nesting import Nested, nested_operations
from hpcprof.trace.columns import (
    COLLECTIVE,
    COLLECTIVE_ACTIVITY,
    EXECUTOR_OP,
    HOST,
    INPUT,
    INPUT_ACTIVITY,
    NAME,
    STEP_KIND,
    TF_PROFILE,
)
from hpcprof.trace.frame import coded, nullable_int, spans_frame
from hpcprof.trace.model import Training

_STARTED, _DONE = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"
_WAIT_NAME = "IteratorGetNext"
# worth a place on the timeline, beside tf.data's own events
_NOTABLE = ("tf.function-graph_building", "MakeIterator", "Iterator::")


class HostRows(NamedTuple):
    """Tables of a host plane. ``steps`` are our own marks, ``beacons`` as in ``nsys_nvtx``.

    ``unfinished`` collectives had not ended when the recording did, and are left out.
    """

    spans: list[pd.DataFrame]
    steps: pd.DataFrame
    beacons: pd.DataFrame
    unfinished: int


def read_host(plane: Plane, training: Training | None) -> HostRows:
    """All rows of a host plane that mean something to us."""
    nested = nested_operations(plane)
    collectives, unfinished = _collectives(plane, training)
    spans = [
        _operations(plane, nested, training, collectives[NAME].cat.categories.tolist()),
        _waits(plane, nested),
        _background(plane, nested),
        collectives,
    ]
    return HostRows(spans, *read_marks(plane), unfinished)


def read_marks(plane: Plane) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Our own marks alone: the steps and the beacons, as in ``HostRows``."""
    return _steps(plane), _beacons(plane)


def _operations(
    plane: Plane, nested: Nested, training: Training | None, collectives: list[str]
) -> pd.DataFrame:
    """Own time of each operation: what operations inside it took is theirs.

    Those beside the training (XLA's compiler, what feeds several devices) come as host spans. The
    names of ``collectives`` tell which operations pack gradients for them.
    """
    is_collective = np.array([bool(_collective(name.rpartition(":")[2])) for name in plane.names])
    names_of = plane.events.name[nested.position]
    out = nested.is_wait | nested.in_wait | nested.is_background | is_collective[names_of]
    rows, start, end = _own_times(plane, nested, ~out)
    codes, used = pd.factorize(names_of[rows])
    names = [plane.names[code] for code in used]
    known = _without_data_names(training)
    classes = classify([*names, *collectives], known)[: len(names)]
    replicas = np.array([NULL if each.replica is None else each.replica for each in classes])
    replicas = replicas.astype(np.int64)[codes]
    is_beside = np.array([each.is_background for each in classes], dtype=bool)[codes]
    columns = {
        "start_ns": start,
        "end_ns": end,
        "kind": coded(is_beside.astype(np.int64), [EXECUTOR_OP, HOST]),
        "activity": coded(codes, [each.activity for each in classes]),
        "name": coded(codes, names),
        "lane": _lanes(plane, nested.position[rows]),
        "replica": nullable_int(replicas, (replicas == NULL) | is_beside, "Int16"),
        "phase": coded(codes, [None if e.is_background else e.phase for e in classes]),
        "source": TF_PROFILE,
    }
    return spans_frame(columns)


def _without_data_names(training: Training | None) -> Training | None:
    """Which names tf.data's operations have: here runs tell, and one name may be of both."""
    if training is None or INPUT not in training.op_origins:
        return training
    others = {origin: names for origin, names in training.op_origins.items() if origin != INPUT}
    return replace(training, op_origins=others)


@functools.cache
def _collective(op_type: str) -> str | None:
    """Which collective an operation of this type is; None for all others."""
    return classify([f"{op_type}:{op_type}"], None)[0].op


def _own_times(plane: Plane, nested: Nested, keep: Any) -> tuple[Ints, Ints, Ints]:
    """Rows of ``nested`` and the pieces of time that belong to them alone."""
    start, end = (times[nested.position] for times in (plane.events.start_ns, plane.events.end_ns))
    inner: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in np.flatnonzero(nested.parent >= 0).tolist():
        inner[int(nested.parent[row])].append((int(start[row]), int(end[row])))
    is_parent = np.zeros(len(start), dtype=bool)
    is_parent[list(inner)] = True
    whole = np.flatnonzero(keep & ~is_parent)
    pieces = [
        (row, *piece)
        for row in np.flatnonzero(keep & is_parent).tolist()
        for piece in _gaps(int(start[row]), int(end[row]), inner[row])
    ]
    split = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    return (
        np.concatenate([whole, split[:, 0]]),
        np.concatenate([start[whole], split[:, 1]]),
        np.concatenate([end[whole], split[:, 2]]),
    )


def _gaps(start: int, end: int, inner: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What ``inner``, in order of time, leaves of the time from start to end."""
    for inner_start, inner_end in inner:
        if inner_start > start:
            yield start, inner_start
        start = max(start, inner_end)
    if end > start:
        yield start, end


def _waits(plane: Plane, nested: Nested) -> pd.DataFrame:
    """The training waits for the next batch, which tf.data prepares."""
    positions = nested.position[nested.is_wait & ~nested.is_background & ~nested.in_wait]
    return spans_frame(
        {
            **_times(plane, positions),
            "kind": EXECUTOR_OP,
            "activity": INPUT_ACTIVITY,
            "name": _WAIT_NAME,
            "lane": _lanes(plane, positions),
            "replica": 0,
            "phase": INPUT,
            "source": TF_PROFILE,
        }
    )


def _background(plane: Plane, nested: Nested) -> pd.DataFrame:
    """tf.data at work, and what else is worth seeing. Nobody waits for it: no phase, no replica."""
    wanted = [code for code, name in enumerate(plane.names) if name.startswith(_NOTABLE)]
    notable = np.flatnonzero(np.isin(plane.events.name, wanted))
    positions = np.union1d(nested.position[nested.is_background & ~nested.is_wait], notable)
    codes, used = pd.factorize(plane.events.name[positions])
    return spans_frame(
        {
            **_times(plane, positions),
            "kind": HOST,
            "name": coded(codes, [plane.names[code] for code in used]),
            "lane": _lanes(plane, positions),
            "source": TF_PROFILE,
        }
    )


def _collectives(plane: Plane, training: Training | None) -> tuple[pd.DataFrame, int]:
    """Starts and ends paired by the run of the function and the name, k-th with k-th."""
    begun: dict[tuple[int, str], list[int]] = defaultdict(list)
    pairs: list[tuple[int, int, str, str]] = []
    unfinished = 0
    marks = plane.named(_STARTED, _DONE)
    started = frozenset(plane.codes([_STARTED]))
    in_time = marks[np.argsort(plane.events.start_ns[marks], kind="stable")]
    for position in in_time.tolist():
        stats = plane.stats_of(position)
        op_type = str(stats.get("kernel_type", ""))
        if not _collective(op_type):
            continue
        name = str(stats.get("name", ""))
        waiting = begun[(int(stats.get("step_id", 0)), name)]
        if int(plane.events.name[position]) in started:
            waiting.append(position)
            unfinished += 1
        elif waiting:
            pairs.append((waiting.pop(0), position, name, op_type))
            unfinished -= 1
    begin = np.array([pair[0] for pair in pairs], dtype=np.int64)
    done = np.array([pair[1] for pair in pairs], dtype=np.int64)
    is_one_device = training is None or training.replicas in (None, 1)
    return spans_frame(
        {
            "start_ns": plane.events.start_ns[begin],
            "end_ns": plane.events.start_ns[done],
            "kind": COLLECTIVE,
            "activity": COLLECTIVE_ACTIVITY,
            "name": [f"{name}:{op_type}" for _, _, name, op_type in pairs],
            "lane": _lanes(plane, begin),
            "replica": 0 if is_one_device else None,
            "op": [_collective(op_type) for _, _, _, op_type in pairs],
            "source": TF_PROFILE,
        }
    ), unfinished


def _steps(plane: Plane) -> pd.DataFrame:
    """The steps as ``annotate/tf_profiler`` marked them; Keras's own marks are not counted in."""
    found = plane.named(own.STEP)
    positions = found[plane.int_stat(found, own.OWN_STEP) == 1]
    return spans_frame(
        {
            **_times(plane, positions),
            "kind": STEP_KIND,
            "name": "step",
            "lane": _lanes(plane, positions),
            "replica": 0,
            "step": plane.int_stat(positions, own.STEP_NUMBER),
            "source": TF_PROFILE,
        }
    )


def _beacons(plane: Plane) -> pd.DataFrame:
    marks = plane.named(own.SYNC)
    columns = {
        "time_ns": plane.events.start_ns[marks],
        "seq": plane.int_stat(marks, own.SYNC_NUMBER, NULL),
        "monotonic_ns": plane.int_stat(marks, own.SYNC_MONOTONIC, NULL),
        "realtime_ns": plane.int_stat(marks, own.SYNC_WALL, NULL),
    }
    table: pd.DataFrame = pd.DataFrame(columns)
    whole: pd.DataFrame = table[(table["seq"] != NULL) & (table["monotonic_ns"] != NULL)]
    return whole


def _times(plane: Plane, positions: Ints) -> dict[str, Any]:
    return {
        "start_ns": plane.events.start_ns[positions],
        "end_ns": plane.events.end_ns[positions],
    }


def _lanes(plane: Plane, positions: Ints) -> Any:
    return coded(plane.events.line[positions], plane.lines)
