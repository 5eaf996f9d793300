"""What becomes of NVTX ranges, whoever recorded them: nsys or our own recorder.

Ours are steps and phases. Horovod's are collectives. TensorFlow's (domain "TSL") are operations,
with the phase that their names tell (``op_names``); their lane is the thread that launched them.
All others are host spans. Does not place times on a clock, and does not assign steps.

Of operations within each other only the innermost count, or time would count twice; the outer one,
a call of a function that is executed in place, becomes a host span. So does work beside the
training: tf.data's functions and XLA's compiler. A collective of TensorFlow's own
(``CollectiveReduceV2``) stays an operation: its start is the arrival, and its end is not known,
because it goes on after the range has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hpcprof.artifacts import span_format
from hpcprof.readers.collective_names import collective_op
from hpcprof.readers.op_names import classify
from hpcprof.trace.columns import (
    ALLREDUCE,
    COLLECTIVE,
    COLLECTIVE_ACTIVITY,
    EXECUTOR_OP,
    HOST,
    OTHER,
    PHASE_ACTIVITY,
    PHASE_KIND,
    PHASES,
    STEP_KIND,
)
from hpcprof.trace.frame import coded, nullable_int, spans_frame
from hpcprof.trace.model import Training

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Ranges(NamedTuple):
    """Ranges of one domain. ``columns``: start_ns, end_ns, lane and source of the spans table.

    ``codes``: index into ``texts``, their messages, which may be repeated.
    """

    columns: Mapping[str, Any]
    codes: Ints
    texts: Sequence[str]


def horovod_spans(ranges: Ranges, nbytes: Any) -> pd.DataFrame:
    """One range per tensor, from enqueue to completion: its start is the arrival of the rank."""
    ops = [collective_op(text) for text in ranges.texts]
    return spans_frame(
        {
            **ranges.columns,
            "kind": COLLECTIVE,
            "activity": COLLECTIVE_ACTIVITY,
            "name": coded(ranges.codes, ranges.texts),
            "replica": 0,  # Horovod: one device per rank
            "bytes": nbytes,
            "op": coded(ranges.codes, ops),
        }
    )


def op_spans(ranges: Ranges, training: Training | None) -> pd.DataFrame:
    """One range per operation, on the thread that ran it or launched its kernels."""
    used, codes = np.unique(ranges.codes, return_inverse=True)
    codes = codes.reshape(-1)
    names = [ranges.texts[code] or "operation without a name" for code in used.tolist()]
    classes = classify(names, training)
    is_background = np.array([each.is_background for each in classes] + [False])[codes]
    is_op = ~(is_background | _holds_others(ranges.columns))
    of_op = np.where(is_op, codes, -1)
    replicas = np.array([-1 if c.replica is None else c.replica for c in classes] + [-1])[of_op]
    return spans_frame(
        {
            **ranges.columns,
            "kind": coded(is_op.astype(np.int64), [HOST, EXECUTOR_OP]),
            "activity": coded(of_op, [each.activity for each in classes]),
            "name": coded(codes, names),
            "replica": nullable_int(replicas, replicas < 0, "Int16"),
            "phase": coded(of_op, [each.phase for each in classes]),
            "op": coded(of_op, [each.op for each in classes]),
        }
    )


def _holds_others(columns: Mapping[str, Any]) -> Any:
    """Which ranges have another one within them on the same thread."""
    start, end = np.asarray(columns["start_ns"]), np.asarray(columns["end_ns"])
    lanes = pd.factorize(np.asarray(columns["lane"].codes))[0]
    order = np.lexsort((-end, start, lanes))
    start, end, lanes = start[order], end[order], lanes[order]
    # ranges of a thread are nested, so the next one to start is within this one or after it
    is_within = (lanes[1:] == lanes[:-1]) & (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
    holds = np.zeros(len(start), dtype=bool)
    holds[order[:-1]] = is_within
    return holds


def host_spans(ranges: Ranges) -> pd.DataFrame:
    """Ranges of anybody else, as they are."""
    names = [text or "range without a name" for text in ranges.texts]
    return spans_frame({**ranges.columns, "kind": HOST, "name": coded(ranges.codes, names)})


def own_spans(ranges: Ranges) -> pd.DataFrame:
    """Ranges of our domain in the form the span reader gives them."""
    codes = ranges.codes
    parsed = [_own_name(text) for text in ranges.texts]
    steps = np.array([-1 if step is None else step for _, _, step in parsed] + [-1])[codes]
    is_host = np.array([kind == HOST for kind, _, _ in parsed] + [False])[codes]
    phases = [
        None if kind != PHASE_KIND else name if name in PHASES else OTHER
        for kind, name, _ in parsed
    ]
    return spans_frame(
        {
            **ranges.columns,
            "kind": coded(codes, [kind for kind, _, _ in parsed]),
            "name": coded(codes, [name for _, name, _ in parsed]),
            "activity": coded(codes, [PHASE_ACTIVITY.get(phase or "") for phase in phases]),
            "replica": nullable_int(np.zeros(len(codes)), is_host, "Int16"),
            "step": nullable_int(steps, steps < 0, "Int32"),
            "phase": coded(codes, phases),
            "op": coded(codes, [phase if phase == ALLREDUCE else None for phase in phases]),
        }
    )


def _own_name(text: str) -> tuple[str, str, int | None]:
    """Kind, name and step of a range of our domain."""
    number = text.removeprefix(span_format.NVTX_STEP_PREFIX)
    if number != text and number.isdigit():
        return STEP_KIND, "step", int(number)
    phase = text.removeprefix(span_format.NVTX_PHASE_PREFIX)
    if phase != text:
        return PHASE_KIND, phase, None
    return HOST, text, None
