"""During which steps was the profiler of any rank starting, stopping or writing?

1. A step of a rank runs from the end of its last collective of the step before to the end of its
   last one in this step (arrivals.py): together they cover the training without a hole, so that
   work of the profiler between two steps counts for the step that it delays.
2. A step is busy when any part of it overlaps a time at which the profiler of that rank was at
   work. Both are read on the rank's own clock.
3. What is busy on one rank is left out for all: the others wait for it in the collective.

Left out of lateness, causes, parts of the step and transfer. Too few remain when they are fewer
than those left out and fewer than FEW_STEPS: then the rest may be what is unusual about the run. A
long training in which a report is written for a long time is judged by its other steps, and the
report says so.

Does not know how much a busy step was disturbed: one that was not is left out as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpcprof.analyses.arrivals import is_collective
from hpcprof.analyses.intervals import Union, overlap, union
from hpcprof.trace import columns as c

Int64s = npt.NDArray[np.int64]

FEW_STEPS = 20  # as many as a user is asked to record
MIN_STEPS = 5  # fewer are never compared


@dataclass(frozen=True)
class BusySteps:
    """``steps`` were left out of the comparison, ascending; ``left`` could be compared."""

    steps: tuple[int, ...] = ()
    left: int = 0

    @property
    def are_too_many(self) -> bool:
        """Whether what is left says too little about the run."""
        return bool(self.steps) and self.left < max(MIN_STEPS, min(FEW_STEPS, len(self.steps)))


def why_too_few(busy: BusySteps, steps: int) -> str:
    """Why the steps that can be compared, ``steps``, say too little of the run; "" if they do."""
    if busy.are_too_many:
        left_out, left = len(busy.steps), busy.left
        return (
            f"a profiler was starting, stopping or writing in {left_out} of {left_out + left} "
            f"comparable steps; the other {left} say too little"
        )
    if steps < MIN_STEPS:
        return f"{steps} comparable steps; at least {MIN_STEPS} are needed"
    return ""


def busy_steps(spans: pd.DataFrame, form: str) -> Int64s:
    """Steps of one rank during which its profiler was at work, ascending.

    ``form``: arrivals.PROFILER or MARKED. The first step begins with the first span of the rank.
    """
    is_busy = spans[c.KIND] == c.BUSY
    covered = covered_times(spans[is_busy])
    if not covered[0].size:
        return np.empty(0, np.int64)
    rows = spans[is_collective(spans, form)]
    ends = rows.groupby(rows[c.STEP].astype("int64"), sort=True)[c.END_NS].max()
    first = int(spans.loc[~is_busy, c.START_NS].min()) if len(ends) else 0
    return overlapping(ends, first, covered)


def covered_times(busy: pd.DataFrame) -> Union:
    """The time that spans of kind ``busy`` cover."""
    return union(busy[c.START_NS].to_numpy(np.int64), busy[c.END_NS].to_numpy(np.int64))


def overlapping(ends: pd.Series[int], first_begin: int, covered: Union) -> Int64s:
    """Steps that overlap ``covered``; ``ends`` is indexed by step, ascending."""
    until = ends.to_numpy(np.int64)
    begins = np.concatenate(([first_begin], until[:-1])) if until.size else until
    hit = overlap(covered, begins, until) > 0
    steps: Int64s = ends.index.to_numpy(np.int64)[hit]
    return steps


def of_any_rank(found: Iterable[Int64s]) -> tuple[int, ...]:
    """Steps that are busy on any rank, ascending."""
    return tuple(sorted({int(step) for steps in found for step in steps}))
