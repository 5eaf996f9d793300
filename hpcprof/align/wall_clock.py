"""Aligns nodes by their wall clocks: always possible, and only as good as the site's NTP.

1. Every beacon of every rank of a node says that realtime - monotonic lies in an interval.
2. Both clocks run at the same rate, so the intervals have a point in common; their intersection is
   the offset and its doubt.
3. No point in common: somebody set the wall clock during the job. That is a warning, and widens
   the bound; times within the node are not affected.

Assumes that the wall clocks of two nodes agree within ``NTP_ERROR_NS``, which nothing here checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.align.node_clock import TIGHT, UNCALIBRATED, UTC_ONLY, NodeClock
from hpcprof.trace.columns import AFTER_NS, BEFORE_NS, NO_BRACKET, REALTIME_NS, SEQ

METHOD = "wall clock"
# "typical error 1 ms to tens of ms" (Nsight Systems User Guide, alignment of reports by UTC)
NTP_ERROR_NS = 20_000_000
# two clocks read one after the other: a preempted process may lose its time slice in between
UNBRACKETED_ERROR_NS = 1_000_000
# reading the clocks rounds to whole ns twice; anything below this is not a step of the clock
_ROUNDING_NS = 1_000


def fit_nodes(anchors: Mapping[str, Mapping[int, pd.DataFrame]]) -> dict[str, NodeClock]:
    """One clock per node from the anchors of its ranks (node -> rank -> anchors table).

    With one node the job clock *is* its clock: status ``tight``, bound without the NTP error.
    A node without any anchor is ``uncalibrated``.
    """
    between_nodes_ns = NTP_ERROR_NS if len(anchors) > 1 else 0
    return {node: _fit_node(node, per_rank, between_nodes_ns) for node, per_rank in anchors.items()}


def _fit_node(node: str, per_rank: Mapping[int, pd.DataFrame], between_nodes_ns: int) -> NodeClock:
    tables = [table for _, table in sorted(per_rank.items()) if len(table)]
    if not tables:
        return NodeClock(node, 0, 0, 0, None, METHOD, UNCALIBRATED)
    low, high = _offset_intervals(tables)
    lowest, highest = int(low.max()), int(high.min())
    middles = low + (high - low) // 2
    warnings: tuple[str, ...] = ()
    if lowest <= highest + _ROUNDING_NS:
        offset = lowest + (highest - lowest) // 2
        doubt = max((abs(highest - lowest) + 1) // 2, 1)
        residual = 0
    else:
        offset = int(np.sort(middles)[len(middles) // 2])  # never a mean: float64 loses epoch ns
        residual = int(np.abs(middles - offset).max())
        doubt = residual
        warnings = (_step_warning(node, low, high),)
    return NodeClock(
        node=node,
        offset_ns=offset,
        drift_ppb=0,
        residual_ns=residual,
        bound_ns=doubt + between_nodes_ns,
        method=METHOD,
        status=UTC_ONLY if between_nodes_ns else TIGHT,
        samples=len(low),
        warnings=warnings,
    )


def _offset_intervals(
    tables: list[pd.DataFrame],
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Lower and upper limit of realtime - monotonic, one pair per sample; brackets if any."""
    joined: pd.DataFrame = pd.concat(tables, ignore_index=True)
    is_beacon = joined[SEQ] != NO_BRACKET
    slack = 0
    if is_beacon.any():
        joined = joined[is_beacon]
    else:
        slack = UNBRACKETED_ERROR_NS
    realtime = joined[REALTIME_NS].to_numpy()
    low = realtime - joined[AFTER_NS].to_numpy() - slack
    high = realtime - joined[BEFORE_NS].to_numpy() + slack
    return low, high


def _step_warning(node: str, low: Any, high: Any) -> str:
    apart_ms = (int(low.max()) - int(high.min())) / 1e6
    bracket_ms = int((high - low).max()) / 1e6
    return (
        f"node {node}: its ranks read the wall clock {apart_ms:.3f} ms apart (their brackets are "
        f"at most {bracket_ms:.3f} ms): it was set during the job. Order between this node and "
        "others is doubtful by that much; times within the node are not affected."
    )
