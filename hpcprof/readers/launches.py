"""Gives what runs on a GPU the phase of the operation that launched it. Knows no file format.

A kernel and the CUDA call that launched it share a correlation number, and TensorFlow launches the
kernels of an operation from the thread, and within the range, that names the operation. What was
launched outside any named operation (NCCL's and Horovod's own threads, steps without names) keeps
no phase.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hpcprof.trace.columns import (
    CORRELATION,
    END_NS,
    EXECUTOR_OP,
    KERNEL,
    KIND,
    LANE,
    MEMCPY,
    MEMSET,
    PHASE,
    RUNTIME,
    START_NS,
)

Ints = np.ndarray[Any, np.dtype[np.int64]]
_ON_DEVICE = (KERNEL, MEMCPY, MEMSET)


def with_phases(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans of one process, the phase filled in of what operations launched on a GPU."""
    ops = spans[spans[KIND] == EXECUTOR_OP]
    calls = spans[(spans[KIND] == RUNTIME) & spans[CORRELATION].notna()]
    on_device = (spans[KIND].isin(_ON_DEVICE) & spans[CORRELATION].notna()).to_numpy()
    if not len(ops) or not len(calls) or not on_device.any():
        return spans
    launched_by = _operation_of(calls, ops)
    number_of = pd.Series(launched_by, index=calls[CORRELATION].to_numpy(dtype=np.int64))
    number_of = number_of[~number_of.index.duplicated()]
    correlations = spans.loc[on_device, CORRELATION].to_numpy(dtype=np.int64)
    numbers = number_of.reindex(correlations, fill_value=-1).to_numpy(dtype=np.int64)
    phases = spans[PHASE].cat.codes.to_numpy().copy()
    of_ops = np.append(ops[PHASE].cat.codes.to_numpy(), -1)
    phases[on_device] = of_ops[numbers]
    filled = pd.Categorical.from_codes(phases, categories=spans[PHASE].cat.categories)
    named: pd.DataFrame = spans.assign(**{PHASE: pd.Series(filled, index=spans.index)})
    return named


def _operation_of(calls: pd.DataFrame, ops: pd.DataFrame) -> Ints:
    """Position in ``ops`` of the operation within which each call was made, -1 for none.

    Operations of a thread do not overlap, so it is the last one to start before the call.
    """
    found = np.full(len(calls), -1, dtype=np.int64)
    call_lanes, op_lanes = calls[LANE].cat.codes.to_numpy(), ops[LANE].cat.codes.to_numpy()
    call_starts, ends = calls[START_NS].to_numpy(), ops[END_NS].to_numpy()
    for lane in np.unique(op_lanes):
        mine = np.flatnonzero(call_lanes == lane)
        of_lane = np.flatnonzero(op_lanes == lane)  # sorted by start, as all spans are
        starts = ops[START_NS].to_numpy()[of_lane]
        last = np.searchsorted(starts, call_starts[mine], side="right") - 1
        candidate = of_lane[np.maximum(last, 0)]
        is_within = (last >= 0) & (call_starts[mine] < ends[candidate])
        found[mine[is_within]] = candidate[is_within]
    return found
