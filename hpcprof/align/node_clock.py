"""``NodeClock``: how one node's CLOCK_MONOTONIC relates to the job's clock, and how to apply it.

Does not estimate anything; that is what the fitting modules do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """``CLOCK_MONOTONIC + offset_ns`` is the job's clock, before the origin is taken off.

    ``residual_ns`` is what the samples leave unexplained, ``bound_ns`` the largest error between
    this node and the others; None when nothing is known. ``drift_ppb`` is 0 where the method
    assumes a constant offset.
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


def apply(trace: Trace, clock: NodeClock, t0_ns: int) -> Trace:
    """The trace on the job's clock, ns since ``t0_ns``; times before t0 become negative.

    All arithmetic is int64. Raises InputError when the clock of the node is not known: its spans
    have no place on the job's clock.
    """
    if clock.status == UNCALIBRATED:
        raise InputError(
            f"rank {trace.rank.rank}: nothing ties the clock of node {clock.node} to the others; "
            "its times cannot be compared with theirs"
        )
    shift = clock.offset_ns - t0_ns
    spans, counters = trace.spans, trace.counters
    return replace(
        trace,
        spans=spans.assign(
            **{START_NS: spans[START_NS] + shift, END_NS: spans[END_NS] + shift},
        ),
        counters=counters.assign(**{TIME_NS: counters[TIME_NS] + shift}),
    )
