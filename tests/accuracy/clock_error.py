"""How far the aligned clocks were from the truth, and whether the printed bound held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcprof.align import NodeClock
from tests.cluster.clocks import SkewedClocks

SAMPLES = 200


def clock_errors(
    clocks: Mapping[str, NodeClock], truth: SkewedClocks, first_ns: int, last_ns: int
) -> dict[str, dict[str, Any]]:
    """Per node but the first: largest error of its time against the first node's, and the bounds.

    ``first_ns`` and ``last_ns``: host's CLOCK_MONOTONIC at the beginning and end of the run. Both
    clocks are read at the same instants; what they show on the job's clock should be the same.
    """
    reference, *others = sorted(clocks)
    host = np.linspace(first_ns, last_ns, SAMPLES).astype(np.int64).tolist()
    expected, known = _shown(clocks[reference], truth, reference, host)
    return {
        node: {
            **_error(clocks[node], truth, host, (expected, known)),
            "true_ppb": truth.nodes[node].skew.monotonic_ppb
            - truth.nodes[reference].skew.monotonic_ppb,
        }
        for node in others
        if clocks[node].bound_ns is not None
    }


def _shown(clock: NodeClock, truth: SkewedClocks, node: str, host: list[int]) -> tuple[Any, Any]:
    own = np.array([truth.nodes[node].monotonic_ns(moment) for moment in host], dtype=np.int64)
    return clock.to_job(own), clock.bound_at(own)


def _error(
    clock: NodeClock, truth: SkewedClocks, host: list[int], reference: tuple[Any, Any]
) -> dict[str, Any]:
    seen, known = _shown(clock, truth, clock.node, host)
    error = np.abs(seen - reference[0])
    bound = known + reference[1]
    skew = truth.nodes[clock.node].skew
    return {
        "method": clock.method,
        "status": clock.status,
        "error_ns": int(error.max()),
        "bound_ns": int(bound.max()),
        "is_within": bool((error <= bound).all()),
        "drift_ppb": clock.drift_ppb,
        "true_offset_ns": skew.realtime_offset_ns,
        "violations": clock.violations,
    }
