"""The steps that all usable ranks have, as matrices (step × rank), warm-up and busy steps left out.

Answers "which steps and ranks may be compared?". Every analysis across ranks starts here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpcprof.analyses.busy_steps import BusySteps

Matrix = npt.NDArray[np.float64]

# a rank with fewer steps than this share of the longest one does not shorten everybody's record
MIN_SHARE_OF_STEPS = 0.5
WARM_UP_TOLERANCE = 1.05  # a step within 5 % of the later median is no warm-up (algorithms, 8)
MAX_WARM_UP_SHARE = 0.25


@dataclass(frozen=True)
class StepMatrix:
    """``values[name]`` is float64 [step, rank] in ns; ``steps`` are the training's numbers.

    ``left_out`` are ranks with too few steps, ``warm_up`` counts the leading steps not used.
    ``expected`` is the number of ranks the job had. ``busy``: steps that the ranks have and that
    are not used because a profiler was at work. ``stride``: how many steps of the training a step
    here is (arrivals.per_rank); ranks of which it is another number are left out.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    values: Mapping[str, Matrix]
    warm_up: int
    left_out: tuple[int, ...]
    expected: int
    busy: BusySteps = field(default_factory=BusySteps)
    stride: int = 1

    @property
    def arrival(self) -> Matrix:
        """Time until ready for the last collective, ns."""
        return self.values["arrival_ns"]

    @property
    def step_time(self) -> Matrix:
        """Length of each step on each rank, ns."""
        return self.values["arrival_ns"] + self.values["sync_ns"]

    @property
    def median_step_ns(self) -> float:
        """The job's step time; nan without steps."""
        return float(np.median(self.step_time)) if self.steps else float("nan")


def across_ranks(
    frames: Mapping[int, pd.DataFrame], expected: int, busy: Collection[int] = ()
) -> StepMatrix:
    """Put the frames of ``arrivals.per_rank`` side by side. ``expected``: ranks of the job.

    ``busy``: steps to leave out (busy_steps.py).
    """
    stride, frames = _of_one_stride(frames)
    longest = max((len(frame) for frame in frames.values()), default=0)
    enough = max(1, MIN_SHARE_OF_STEPS * longest)
    ranks = tuple(sorted(rank for rank, frame in frames.items() if len(frame) >= enough))
    left_out = tuple(sorted(set(frames) - set(ranks)))
    every = _common_steps([frames[rank] for rank in ranks])
    is_busy = np.isin(every, np.fromiter(busy, np.int64, len(busy)))
    common = every[~is_busy]
    names = [] if not ranks else [n for n in frames[ranks[0]].columns if n.endswith("_ns")]
    values = {
        name: np.column_stack([frames[r].loc[common, name].to_numpy(np.float64) for r in ranks])
        for name in names
    }
    warm_up = 0
    if len(common):
        warm_up = warm_up_steps(np.median(values["arrival_ns"] + values["sync_ns"], axis=1))
    return StepMatrix(
        ranks=ranks,
        steps=tuple(int(step) for step in common[warm_up:]),
        values={name: matrix[warm_up:] for name, matrix in values.items()},
        warm_up=warm_up,
        left_out=left_out,
        expected=expected,
        busy=BusySteps(tuple(every[is_busy].tolist()), len(common) - warm_up),
        stride=stride,
    )


def _of_one_stride(frames: Mapping[int, pd.DataFrame]) -> tuple[int, Mapping[int, pd.DataFrame]]:
    """The stride of most rows of most ranks, and the rows that have it; 1 where nobody says any.

    A step that is two steps of the others would make its rank late.
    """
    usual = [
        int(frame["stride"].mode().iloc[0])
        for frame in frames.values()
        if len(frame) and "stride" in frame
    ]
    if not usual:
        return 1, frames
    stride = max(sorted(set(usual)), key=usual.count)
    return stride, {
        rank: frame[frame["stride"] == stride] if "stride" in frame else frame
        for rank, frame in frames.items()
    }


def _common_steps(frames: list[pd.DataFrame]) -> npt.NDArray[np.int64]:
    if not frames:
        return np.empty(0, np.int64)
    common = frames[0].index
    for frame in frames[1:]:
        common = common.intersection(frame.index)
    return np.asarray(common.sort_values(), dtype=np.int64)


def warm_up_steps(step_time: npt.NDArray[np.float64]) -> int:
    """Leading steps until one is within 5 % of the median of the later half; at least one given."""
    limit = np.median(step_time[len(step_time) // 2 :]) * WARM_UP_TOLERANCE
    settled = np.flatnonzero(step_time <= limit)
    return int(min(settled[0] if settled.size else 0, MAX_WARM_UP_SHARE * len(step_time)))
