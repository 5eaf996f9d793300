"""What does moving the gradients cost, how fast does it go, and is one node's link the reason?

1. Transfer of a step: from the last collective's last start to the end of the step's collectives
   on a rank, the shortest over the ranks. Clock-free, and only what is not hidden behind the
   backward pass; its share of the step is what a faster network could save at most.
2. Transfer of one collective, and each rank's wait in it: collectives.py.
3. Bandwidth: bytes of a step over the time in which any of its collectives ran (the union, so that
   concurrent ones do not count twice), the shortest over the ranks. A profiler's ranges contain
   the queue in front of the collective: then it is a lower bound.
4. Wait on the job's clock, latest start - own start, as a cross-check: only when the latest start
   stands out from the error of the clocks, else ``not_resolvable``.
5. The nodes' links: link_rates.py.

Intervals are 95 %, by a block bootstrap over the steps. Does not find ranks that are late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpcprof.align.node_clock import UNCALIBRATED, NodeClock
from hpcprof.analyses.collectives import (
    RANK,
    TRANSFER_NS,
    WAIT_NS,
    MatchedCollectives,
    decomposed,
)
from hpcprof.analyses.link_rates import LinkRates, link_rates
from hpcprof.analyses.resampling import block_draws
from hpcprof.trace import columns as c

Vector = npt.NDArray[np.float64]

NAN = float("nan")
_EARLIEST_NS = int(np.iinfo(np.int64).min)
IN_NETWORK = "in-network"  # NVLS, CollNet: only when the algorithm is known to be one

# nccl-tests doc/PERFORMANCE.md: (op, algorithm) → busbw / algbw = times (n + a) / (n + b), so that
# the number is comparable with the link's speed. "" is any other algorithm
_BUS_FACTORS = {
    ("allreduce", ""): (2, -1, 0),
    ("allreduce", IN_NETWORK): (1, -1, 1),
    ("reducescatter", ""): (1, -1, 0),
    ("allgather", ""): (1, -1, 0),
    ("alltoall", ""): (1, -1, 0),
    ("broadcast", ""): (1, 0, 0),
    ("reduce", ""): (1, 0, 0),
    ("sendrecv", ""): (1, 0, 0),
}


@dataclass(frozen=True)
class Interconnect:
    """Transfer of one job. Times in ns, rates in GB/s (1e9 bytes); nan is what is not known.

    ``collectives`` that all ranks share, in ``steps``; ``dropped`` could not be matched.
    ``bytes_per_step`` is None when unknown, and then the rates are too.
    ``transfer_ns`` (per step, not hidden) is ``transfer_frac`` of the step; ``collective_ns``
    belongs to one collective. ``wait_ns``: rank → median wait in a collective, clock-free.
    ``clock_wait_ns`` is the same on the job's clock, {} unless ``clock_status`` is ``ok``
    (else ``not_resolvable`` or ``not_collected``).
    """

    collectives: int = 0
    dropped: int = 0
    steps: int = 0
    bytes_per_step: int | None = None
    transfer_ns: float = NAN
    transfer_frac: float = NAN
    transfer_frac_ci: tuple[float, float] = (NAN, NAN)
    collective_ns: float = NAN
    collective_ns_ci: tuple[float, float] = (NAN, NAN)
    wait_ns: Mapping[int, float] = field(default_factory=dict)
    clock_wait_ns: Mapping[int, float] = field(default_factory=dict)
    clock_status: str = "not_collected"
    algbw_gb_s: float | None = None
    busbw_gb_s: float | None = None
    links: LinkRates = field(default_factory=LinkRates)


def bus_factor(op: str, ranks: int, algorithm: str = "") -> float:
    """busbw / algbw of a collective over ``ranks``. Raises KeyError for an op without one."""
    times, plus, below = _BUS_FACTORS[op, algorithm]
    return times * (ranks + plus) / (ranks + below)


def interconnect(
    collectives: MatchedCollectives,
    step_ns: float,
    links: pd.DataFrame,
    node_of: Mapping[int, str],
    clocks: Mapping[str, NodeClock],
) -> Interconnect:
    """``collectives`` are allreduces, aligned when ``clocks`` say so; ``step_ns``: median step.

    ``links`` has link_rates.LINK_COLUMNS, possibly without rows. ``node_of``: rank → node; its
    nodes are those of the job.
    """
    rates = link_rates(links, sorted(set(node_of.values())))
    ranks = collectives.ranks
    if len(ranks) < 2:
        return Interconnect(dropped=collectives.dropped, links=rates)
    rows = decomposed(collectives.rows)
    per_step = _per_step(rows)
    draws = block_draws(len(per_step))
    transfer = per_step["transfer_ns"].to_numpy(np.float64)
    one = rows[rows[RANK] == ranks[0]].groupby(c.STEP)[TRANSFER_NS].median().to_numpy(np.float64)
    payload = int(per_step["bytes"].median())
    algbw = payload / float(per_step["busy_ns"].median()) if payload else None
    status, clock_wait = _clock_wait(rows, {node_of[rank] for rank in ranks}, clocks)
    low, high = _interval(transfer, draws)
    return Interconnect(
        collectives=len(collectives),
        dropped=collectives.dropped,
        steps=len(per_step),
        bytes_per_step=payload or None,
        transfer_ns=float(np.median(transfer)),
        transfer_frac=float(np.median(transfer)) / step_ns,
        transfer_frac_ci=(low / step_ns, high / step_ns),
        collective_ns=float(np.median(one)),
        collective_ns_ci=_interval(one, draws),
        wait_ns=_by_rank(rows, WAIT_NS),
        clock_wait_ns=clock_wait,
        clock_status=status,
        algbw_gb_s=algbw,
        busbw_gb_s=None if algbw is None else algbw * bus_factor("allreduce", len(ranks)),
        links=rates,
    )


def _per_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Per step: transfer_ns that is not hidden, busy_ns (union), bytes; the shortest over ranks."""
    by_rank = rows.groupby([RANK, c.STEP], sort=True)
    table: pd.DataFrame = pd.DataFrame(
        {
            "transfer_ns": by_rank[c.END_NS].max() - by_rank[c.START_NS].max(),
            "busy_ns": _newly_covered(rows).groupby([rows[RANK], rows[c.STEP]]).sum(),
            "bytes": by_rank[c.BYTES].sum(),
        }
    )
    # a collective of no length has no rate; 1 ns keeps the division defined
    shortest: pd.DataFrame = table.groupby(level=c.STEP).min()
    shortest["busy_ns"] = shortest["busy_ns"].clip(lower=1)
    return shortest


def _newly_covered(rows: pd.DataFrame) -> pd.Series[int]:
    """Per collective the ns that no earlier one of its rank and step covers: they add to a union.

    ``rows`` are sorted by start within a step.
    """
    step = [rows[RANK], rows[c.STEP]]
    reached = rows.groupby(step)[c.END_NS].cummax()
    # filled, because a null would turn ns into floats
    before = reached.groupby(step).shift(fill_value=_EARLIEST_NS)
    begin = np.maximum(rows[c.START_NS], before)
    covered: pd.Series[int] = (rows[c.END_NS] - begin).clip(lower=0)
    return covered


def _clock_wait(
    rows: pd.DataFrame, nodes: set[str], clocks: Mapping[str, NodeClock]
) -> tuple[str, dict[int, float]]:
    """Status, and per rank the median of latest start - own start on the job's clock."""
    used = [clocks[node] for node in nodes if node in clocks]
    bounds = [k.bound_ns for k in used if k.status != UNCALIBRATED and k.bound_ns is not None]
    if len(bounds) < len(nodes):
        return "not_collected", {}
    latest = rows.groupby([c.STEP, c.SEQ])[c.START_NS].transform("max")
    waits = _by_rank(rows.assign(clock=latest - rows[c.START_NS]), "clock")
    # between two nodes both clocks are in doubt; within one all ranks read the same clock
    doubt = sum(sorted(bounds)[-2:]) if len(nodes) > 1 else 0
    if max(waits.values()) - min(waits.values()) <= doubt:
        return "not_resolvable", {}
    return "ok", waits


def _by_rank(rows: pd.DataFrame, name: str) -> dict[int, float]:
    medians = rows.groupby(RANK)[name].median()
    return dict(zip((int(rank) for rank in medians.index), map(float, medians), strict=True))


def _interval(values: Vector, draws: npt.NDArray[np.int64]) -> tuple[float, float]:
    low, high = np.quantile(np.median(values[draws], axis=1), (0.025, 0.975))
    return float(low), float(high)
