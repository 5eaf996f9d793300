"""Assigns spans to training steps by time. Does not decide which source's steps are believed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.trace.columns import (
    CHECKPOINT,
    END_NS,
    EVAL,
    INPUT,
    KIND,
    PHASE,
    PHASE_KIND,
    START_NS,
    STEP,
    STEP_KIND,
)
from hpcprof.trace.frame import nullable_int

_BESIDE = (EVAL, CHECKPOINT)


def step_numbers(spans: pd.DataFrame) -> pd.Series[int]:
    """Step numbers of the step spans, in order of time; none gives an empty series."""
    numbers: pd.Series[int] = spans.loc[spans[KIND] == STEP_KIND, STEP].dropna().astype("int64")
    return numbers


def assign_steps(spans: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Give each span without a step the step during which it starts.

    The interval of a step reaches from the end of the step before it to its own end, because input
    that is fetched before a step belongs to it; the first one begins with the last input before it.
    Spans outside stay null. ``own`` is on the same clock.
    """
    steps = own[(own[KIND] == STEP_KIND) & own[STEP].notna()]
    if not len(steps) or not len(spans):
        return spans
    numbers = steps[STEP].to_numpy(dtype=np.int64)
    ends = np.maximum.accumulate(steps[END_NS].to_numpy())
    begin = _first_begin(own, int(steps[START_NS].iloc[0]))
    starts = spans[START_NS].to_numpy()
    index = np.searchsorted(ends, starts, side="right")
    outside = (index == len(ends)) | (starts < begin)
    by_time = nullable_int(numbers[np.minimum(index, len(ends) - 1)], outside, "Int32")
    filled: pd.Series[int] = spans[STEP].fillna(pd.Series(by_time, index=spans.index))
    assigned: pd.DataFrame = spans.assign(**{STEP: filled})
    return assigned


def beside_steps(spans: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Operations that start during an evaluation or a checkpoint, as ``own`` marks it, are of it.

    They bear the same names as those of the training. What they run on a GPU is treated alike.
    ``own`` is on the same clock.
    """
    marks = own[(own[KIND] == PHASE_KIND) & own[PHASE].isin(_BESIDE)]
    is_op = (spans[PHASE].notna() & (spans[KIND] != PHASE_KIND)).to_numpy()
    if not len(marks) or not is_op.any():
        return spans
    ends = np.maximum.accumulate(marks[END_NS].to_numpy())
    starts = spans[START_NS].to_numpy()
    index = np.minimum(np.searchsorted(ends, starts, side="right"), len(ends) - 1)
    is_within = is_op & (starts >= marks[START_NS].to_numpy()[index]) & (starts < ends[index])
    phases = spans[PHASE].copy()
    for phase in _BESIDE:
        phases[is_within & (marks[PHASE].to_numpy()[index] == phase)] = phase
    moved: pd.DataFrame = spans.assign(**{PHASE: phases})
    return moved


def _first_begin(own: pd.DataFrame, first_start: int) -> int:
    is_input = (own[KIND] == PHASE_KIND) & (own[PHASE] == INPUT)
    inputs = own[is_input & (own[END_NS] <= first_start)]
    return int(inputs[START_NS].iloc[-1]) if len(inputs) else first_start
