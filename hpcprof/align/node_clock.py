"""``NodeClock``: how one node's CLOCK_MONOTONIC relates to the job's clock, and how to apply it.

Does not estimate anything; that is what the fitting modules do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from hpcprof.align.offset_curve import Int64s, OffsetCurve
from hpcprof.errors import InputError
from hpcprof.trace.columns import END_NS, START_NS, TIME_NS
from hpcprof.trace.model import Trace

# how far conclusions about order between nodes can be trusted
TIGHT = "tight"  # one clock, or a bracket
ESTIMATED = "estimated"  # fitted, without a hard bound
BOUNDED = "bounded"  # hard bound, wide
UTC_ONLY = "utc-only"  # wall clocks, as good as the site's NTP
UNCALIBRATED = "uncalibrated"  # nothing is known
STATUSES = (TIGHT, ESTIMATED, BOUNDED, UTC_ONLY, UNCALIBRATED)


@dataclass(frozen=True)
class NodeClock:
    """``CLOCK_MONOTONIC + offset`` is the job's clock, before the origin is taken off.

    ``offset_ns`` is the offset at the first knot of ``curve``, or everywhere where there is none.
    ``drift_ppb``: how much faster this node's clock runs than the job's; 0 where the method assumes
    a constant offset. ``residual_ns`` is what the samples leave unexplained, ``bound_ns`` the
    largest error over the run, None when nothing is known; it rests on the rate of the clock
    changing by no more than ``rho_ppb``. ``violations``: collectives that this node would have left
    before another entered them, or the other way round, by more than both bounds.
    """

    node: str
    offset_ns: int
    drift_ppb: int
    residual_ns: int
    bound_ns: int | None
    method: str
    status: str
    samples: int = 0
    warnings: tuple[str, ...] = ()
    violations: int = 0
    rho_ppb: int = 0
    curve: OffsetCurve | None = field(default=None, repr=False, compare=False)

    def summary(self) -> dict[str, Any]:
        """Every field but ``curve``, which may be long, as plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "curve"}

    def to_job(self, times: Any) -> Int64s:
        """Times of this node (ns) on the job's clock, int64; order is kept."""
        moments: Int64s = np.asarray(times, dtype=np.int64)
        offsets = self.offset_ns if self.curve is None else self.curve.offset_at(moments)
        moved: Int64s = moments + offsets
        return moved

    def bound_at(self, times: Any) -> Int64s:
        """Largest error (ns, int64) of ``to_job`` at times of this node.

        Raises InputError when the clock is not known.
        """
        moments = np.asarray(times, dtype=np.int64)
        if self.bound_ns is None:
            raise InputError(f"nothing ties the clock of node {self.node} to the others")
        if self.curve is None:
            return np.full(moments.shape, self.bound_ns, dtype=np.int64)
        return self.curve.bound_at(moments)

    def shifted(self, by_ns: int) -> NodeClock:
        """The same clock against a job clock that is ``by_ns`` ahead of the former."""
        curve = None if self.curve is None else self.curve.shifted(by_ns)
        return replace(self, offset_ns=self.offset_ns + by_ns, curve=curve)


def pair_bound_ns(clocks: Mapping[str, NodeClock], a: str, b: str) -> int | None:
    """Largest error (ns) of a time difference between two nodes; None: it is not known.

    Differences smaller than this are not resolvable. Within one node it is 0.
    """
    if a == b:
        return 0
    first, second = clocks[a].bound_ns, clocks[b].bound_ns
    return None if first is None or second is None else first + second


def apply(trace: Trace, clock: NodeClock, t0_ns: int) -> Trace:
    """The trace on the job's clock, ns since ``t0_ns``; times before t0 become negative.

    All arithmetic is int64, and order is kept. Raises InputError when the clock of the node is not
    known: its spans have no place on the job's clock.
    """
    if clock.status == UNCALIBRATED:
        raise InputError(
            f"rank {trace.rank.rank}: nothing ties the clock of node {clock.node} to the others; "
            "its times cannot be compared with theirs"
        )

    def moved(column: Any) -> Int64s:
        times: Int64s = clock.to_job(column.to_numpy()) - np.int64(t0_ns)
        return times

    spans, counters = trace.spans, trace.counters
    return replace(
        trace,
        spans=spans.assign(**{START_NS: moved(spans[START_NS]), END_NS: moved(spans[END_NS])}),
        counters=counters.assign(**{TIME_NS: moved(counters[TIME_NS])}),
    )
