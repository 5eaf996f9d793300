"""Where does each rank's step go? Medians per rank of every piece, of waiting and of transfer.

Wait and transfer need no clock: the last to arrive waits for nobody, so the shortest sync of a
step is the transfer, and what a rank spends beyond it is waiting (after TraceLens' collectives).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from hpcprof.analyses.arrivals import ALL_PIECES
from hpcprof.analyses.step_matrix import StepMatrix

WAIT, TRANSFER = "wait", "transfer"
PARTS = (*ALL_PIECES, WAIT, TRANSFER)


@dataclass(frozen=True)
class PhaseTimes:
    """``median_ns[part][i]`` belongs to ``ranks[i]``; ``step_ns`` is the job's median step.

    Medians of parts need not add up to the median of the step. ``steps``: how many were used;
    ``stride``: of how many steps of the training each is.
    """

    ranks: tuple[int, ...]
    steps: int
    warm_up: int
    step_ns: float
    median_ns: Mapping[str, tuple[float, ...]]
    stride: int = 1

    def share(self, part: str, ranks: Collection[int]) -> float:
        """Median over ``ranks`` of a part, as a fraction of the step; nan without any step."""
        chosen = [self.median_ns[part][i] for i, rank in enumerate(self.ranks) if rank in ranks]
        return float(np.median(chosen) / self.step_ns) if chosen else float("nan")


def phase_times(matrix: StepMatrix) -> PhaseTimes:
    """Medians over the usable steps; empty when there are none, or too few beside busy ones."""
    medians: dict[str, tuple[float, ...]] = {}
    is_usable = bool(matrix.steps) and not matrix.busy.are_too_many
    if is_usable:
        sync = matrix.values["sync_ns"]
        transfer = sync.min(axis=1, keepdims=True)
        parts = {piece: matrix.values[f"{piece}_ns"] for piece in ALL_PIECES}
        parts[WAIT] = sync - transfer
        parts[TRANSFER] = np.broadcast_to(transfer, sync.shape)
        medians = {
            name: tuple(float(v) for v in np.median(values, axis=0))
            for name, values in parts.items()
        }
    return PhaseTimes(
        ranks=matrix.ranks if is_usable else (),
        steps=len(matrix.steps) if is_usable else 0,
        warm_up=matrix.warm_up,
        step_ns=matrix.median_step_ns if is_usable else float("nan"),
        median_ns=medians,
        stride=matrix.stride,
    )
