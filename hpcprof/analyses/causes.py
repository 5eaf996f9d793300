"""In which phase does a straggler lose its time?

For each disjoint piece of the arrival (arrivals.py): excess = median over steps of the straggler's
piece minus the median of the baseline ranks. Pieces add up to the arrival, so the excesses explain
the lateness; ``coverage`` is the share explained by one of them (algorithms, section 4; the rule
to name one above 0.8, or two that reach 0.8 together, follows TraceML).

Of a compiled training function only the call is known in every step. The steps whose operations
were named on every rank (arrivals.named_steps) tell which of its phases is the long one: the excess
of the call, from all steps, is divided as theirs is. Naming operations costs time, so these steps
may be longer: they decide nothing else. When they do not show at least half of that excess, they
say nothing about it, and the phase stays ``compute``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcprof.analyses.arrivals import ALL_PIECES, HOST, INSIDE_COMPUTE
from hpcprof.analyses.busy_steps import MIN_STEPS
from hpcprof.analyses.step_matrix import StepMatrix
from hpcprof.analyses.stragglers import Straggler
from hpcprof.trace import columns as c

NAMED_ALONE = 0.8
NAMED_TOGETHER = 0.8
NAMED_EACH = 0.3
# of the excess of a call: below it the steps whose operations were named are not like the others
MIN_SHOWN = 0.5

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
    c.COMPUTE_PHASE: COMPUTE,
    HOST: "host",
}


@dataclass(frozen=True)
class Cause:
    """Why a straggler is late. ``names`` has one or two causes, or only ``unexplained``.

    ``phase`` is the piece with the largest excess. ``excess_ns`` and ``own_ns`` and ``others_ns``:
    piece → median per step, in ns. ``coverage``: share of the lateness that ``names`` explain.
    ``named_steps``: those in which operations were named, when the parts of the call were told
    apart by them; ``own_ns`` and ``others_ns`` of these parts are medians over these steps.
    """

    names: tuple[str, ...]
    phase: str
    coverage: float
    excess_ns: dict[str, float]
    own_ns: dict[str, float]
    others_ns: dict[str, float]
    named_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Pieces:
    """Medians per piece: of the straggler, of the others, and of what it takes longer; ns."""

    own: dict[str, float]
    others: dict[str, float]
    excess: dict[str, float]


def cause(
    matrix: StepMatrix,
    straggler: Straggler,
    baseline_ranks: tuple[int, ...],
    named: StepMatrix | None = None,
) -> Cause:
    """Attribute the lateness of ``straggler`` against ``baseline_ranks``.

    ``named``: of the same ranks, the steps whose operations were named (arrivals.named_steps); None
    when there are none that all ranks have.
    """
    found = _pieces(matrix, straggler.ranks, baseline_ranks)
    steps: tuple[int, ...] = ()
    if named is not None and named.ranks == matrix.ranks and len(named.steps) >= MIN_STEPS:
        inside = _pieces(named, straggler.ranks, baseline_ranks)
        told = _told_apart(found, inside, _call(matrix, named))
        steps = () if told is found else named.steps
        found = told
    # of the typical member and not of the latest, so that the pieces add up to it
    arrival = matrix.arrival
    own, others = _columns(matrix, straggler.ranks), _columns(matrix, baseline_ranks)
    late = np.median(arrival[:, own], axis=1) - np.median(arrival[:, others], axis=1)
    names, coverage = _name(found.excess, float(np.median(late)))
    return Cause(
        names=names,
        phase=max(found.excess, key=lambda piece: found.excess[piece]),
        coverage=coverage,
        excess_ns=found.excess,
        own_ns=found.own,
        others_ns=found.others,
        named_steps=steps,
    )


def _pieces(matrix: StepMatrix, ranks: tuple[int, ...], baseline: tuple[int, ...]) -> _Pieces:
    own, others = _columns(matrix, ranks), _columns(matrix, baseline)
    found = _Pieces({}, {}, {})
    for piece in ALL_PIECES:
        values = matrix.values[f"{piece}_ns"]
        mine = np.median(values[:, own], axis=1)
        theirs = np.median(values[:, others], axis=1)
        found.excess[piece] = float(np.median(mine - theirs))
        found.own[piece] = float(np.median(mine))
        found.others[piece] = float(np.median(theirs))
    return found


def _columns(matrix: StepMatrix, ranks: tuple[int, ...]) -> list[int]:
    return [matrix.ranks.index(rank) for rank in ranks]


def _call(matrix: StepMatrix, named: StepMatrix) -> tuple[str, ...]:
    """The pieces that the named operations divide.

    Those of computing; and ``host`` in a training without any call, whose operations are started
    one by one from Python: without their names it is all host.
    """
    computing = (*INSIDE_COMPUTE, c.COMPUTE_PHASE)
    in_calls = np.median(sum(matrix.values[f"{piece}_ns"] for piece in computing))
    in_operations = np.median(sum(named.values[f"{piece}_ns"] for piece in INSIDE_COMPUTE))
    return computing if in_calls >= MIN_SHOWN * in_operations else (*computing, HOST)


def _told_apart(found: _Pieces, inside: _Pieces, call: tuple[str, ...]) -> _Pieces:
    """``found`` with the parts of the call from the named steps; itself when these do not tell.

    The parts keep the sum of the excess.
    """
    whole = sum(found.excess[piece] for piece in call)
    shown = sum(inside.excess[piece] for piece in call)
    if whole <= 0 or shown < MIN_SHOWN * whole:
        return found
    return _Pieces(
        {**found.own, **{piece: inside.own[piece] for piece in call}},
        {**found.others, **{piece: inside.others[piece] for piece in call}},
        {**found.excess, **{piece: whole * inside.excess[piece] / shown for piece in call}},
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
