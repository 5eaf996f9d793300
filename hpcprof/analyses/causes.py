"""In which phase does a straggler lose its time?

For each disjoint piece of the arrival (arrivals.py): excess = median over steps of the straggler's
piece minus the median of the baseline ranks. Pieces add up to the arrival, so the excesses explain
the lateness; ``coverage`` is the share explained by one of them (algorithms, section 4; the rule
to name one above 0.8, or two that reach 0.8 together, follows TraceML).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcprof.analyses.arrivals import ALL_PIECES, HOST
from hpcprof.analyses.step_matrix import StepMatrix
from hpcprof.analyses.stragglers import Straggler
from hpcprof.trace import columns as c

NAMED_ALONE = 0.8
NAMED_TOGETHER = 0.8
NAMED_EACH = 0.3

COMPUTE = "compute"
UNEXPLAINED = "unexplained"

# what a person can act on; the phases inside are told beside it
CAUSE_OF_PIECE = {
    c.INPUT: "input",
    c.H2D: "copy",
    c.CHECKPOINT: "checkpoint",
    c.EVAL: "eval",
    c.FORWARD: COMPUTE,
    c.BACKWARD: COMPUTE,
    c.OPTIMIZER: COMPUTE,
    HOST: "host",
}


@dataclass(frozen=True)
class Cause:
    """Why a straggler is late. ``names`` has one or two causes, or only ``unexplained``.

    ``phase`` is the piece with the largest excess. ``excess_ns`` and ``own_ns`` and ``others_ns``:
    piece → median per step, in ns. ``coverage``: share of the lateness that ``names`` explain.
    """

    names: tuple[str, ...]
    phase: str
    coverage: float
    excess_ns: dict[str, float]
    own_ns: dict[str, float]
    others_ns: dict[str, float]


def cause(matrix: StepMatrix, straggler: Straggler, baseline_ranks: tuple[int, ...]) -> Cause:
    """Attribute the lateness of ``straggler`` against ``baseline_ranks``."""
    own = [matrix.ranks.index(rank) for rank in straggler.ranks]
    others = [matrix.ranks.index(rank) for rank in baseline_ranks]
    excess, own_ns, others_ns = {}, {}, {}
    for piece in ALL_PIECES:
        values = matrix.values[f"{piece}_ns"]
        mine = np.median(values[:, own], axis=1)
        theirs = np.median(values[:, others], axis=1)
        excess[piece] = float(np.median(mine - theirs))
        own_ns[piece] = float(np.median(mine))
        others_ns[piece] = float(np.median(theirs))
    # of the typical member and not of the latest, so that the pieces add up to it
    arrival = matrix.arrival
    late = np.median(arrival[:, own], axis=1) - np.median(arrival[:, others], axis=1)
    names, coverage = _name(excess, float(np.median(late)))
    return Cause(
        names=names,
        phase=max(excess, key=lambda piece: excess[piece]),
        coverage=coverage,
        excess_ns=excess,
        own_ns=own_ns,
        others_ns=others_ns,
    )


def _name(excess: dict[str, float], late_ns: float) -> tuple[tuple[str, ...], float]:
    by_cause: dict[str, float] = {}
    for piece, value in excess.items():
        by_cause[CAUSE_OF_PIECE[piece]] = by_cause.get(CAUSE_OF_PIECE[piece], 0.0) + value
    share = {name: max(0.0, value / late_ns) for name, value in by_cause.items()}
    first, second = sorted(share, key=lambda name: -share[name])[:2]
    if share[first] >= NAMED_ALONE:
        return (first,), min(1.0, share[first])
    if share[first] + share[second] >= NAMED_TOGETHER and share[second] >= NAMED_EACH:
        return (first, second), min(1.0, share[first] + share[second])
    return (UNEXPLAINED,), min(1.0, share[first])
