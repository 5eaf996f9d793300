"""How late was each rank in each step?

Lateness is the arrival of a rank minus the median arrival of the baseline ranks in the same step
(step_matrix.py, stragglers.py): lengths on each rank's own clock, no alignment. Long trainings are
drawn in bins of equally many step numbers, by the median of the steps in a bin, so that one odd
step does not colour its bin.

What would make it wrong: a baseline that is itself slow; who is the baseline is part of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpcprof.analyses.step_matrix import Matrix, StepMatrix
from hpcprof.analyses.timeline import lanes

MAX_RANKS = 64
MAX_BINS = 600
# the colour scale leaves out the most extreme cells, or one hiccup would make all others pale ...
LIMIT_QUANTILE = 0.98
# ... and never spreads over less than this share of the step: noise must not look like a finding
MIN_LIMIT_FRAC = 0.1


@dataclass(frozen=True)
class LatenessMap:
    """``lateness_ns[i][j]`` is rank ``ranks[i]`` in bin j; nan where no step of the bin is known.

    Ranks are sorted by node, then rank. Bin j holds the steps from ``first_step + j *
    steps_per_bin`` on. ``limit_ns``: where a colour scale around 0 should end. ``baseline_ranks``
    is () when the baseline is the median of all ranks. Without comparable steps all is empty.
    """

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    first_step: int
    last_step: int
    steps_per_bin: int
    lateness_ns: tuple[tuple[float, ...], ...]
    limit_ns: float
    baseline_ranks: tuple[int, ...]
    ranks_left_out: int


def lateness_map(
    matrix: StepMatrix, baseline_ranks: Sequence[int], node_of: Mapping[int, str]
) -> LatenessMap:
    """Lateness of the latest ranks. ``baseline_ranks``: of ``stragglers``; () takes all ranks."""
    if not matrix.steps:
        return LatenessMap((), (), 0, 0, 1, (), 0.0, (), 0)
    chosen = [matrix.ranks.index(rank) for rank in baseline_ranks] or list(range(len(matrix.ranks)))
    lateness = matrix.arrival - np.median(matrix.arrival[:, chosen], axis=1, keepdims=True)
    typical = np.median(lateness, axis=0)
    late_of = {rank: float(typical[i]) for i, rank in enumerate(matrix.ranks)}
    ranks = lanes(matrix.ranks, node_of, late_of, MAX_RANKS)
    shown = lateness[:, [matrix.ranks.index(rank) for rank in ranks]]
    steps = np.asarray(matrix.steps, dtype=np.int64)
    width = -(-int(steps[-1] - steps[0] + 1) // MAX_BINS)
    return LatenessMap(
        ranks=ranks,
        nodes=tuple(node_of[rank] for rank in ranks),
        first_step=matrix.steps[0],
        last_step=matrix.steps[-1],
        steps_per_bin=width,
        lateness_ns=tuple(tuple(row) for row in _binned(shown, steps, width).T.tolist()),
        limit_ns=_limit(shown, matrix.median_step_ns),
        baseline_ranks=tuple(baseline_ranks),
        ranks_left_out=len(matrix.ranks) - len(ranks),
    )


def _binned(lateness: Matrix, steps: npt.NDArray[np.int64], width: int) -> Matrix:
    """Medians [bin, rank]; nan for a bin without steps."""
    bins = (steps - steps[0]) // width
    medians = pd.DataFrame(lateness).groupby(bins).median()
    return np.asarray(medians.reindex(np.arange(bins[-1] + 1)), dtype=np.float64)


def _limit(lateness: Matrix, step_ns: float) -> float:
    """The quantile over all cells, but no less than the latest rank's median."""
    typical = np.abs(np.median(lateness, axis=0)).max()
    extreme = np.quantile(np.abs(lateness), LIMIT_QUANTILE)
    return float(max(extreme, typical, MIN_LIMIT_FRAC * step_ns))
