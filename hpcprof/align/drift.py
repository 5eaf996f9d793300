"""How much clocks may drift: the two assumptions every bound rests on, and the robust line."""

from __future__ import annotations

from typing import Any

import numpy as np

# Any two moments of a run: the rate of one node's clock against another's differs by no more. An
# assumption , not measured; every record says which rho it used.
RHO_PPB = 1_000
# Two board crystals of the usual +-50 ppm tolerance, one fast and one slow, neither disciplined.
MAX_DRIFT_PPB = 100_000
RHO, MAX_DRIFT = RHO_PPB / 1e9, MAX_DRIFT_PPB / 1e9

_MOST_POINTS = 400  # 80 000 pairs; more points do not make the median slope better


def theil_sen(times: Any, values: Any, segments: Any = None) -> tuple[float, float]:
    """(slope, intercept) of the line through points: median of the slopes of all pairs.

    ``segments`` numbers the stretches without a step: only pairs within one count. No pair gives
    slope 0. Up to 29 % of the points may be wrong (Sen 1968, doi:10.1080/01621459.1968.10480934).
    """
    x, y = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    parts = np.zeros(len(x), dtype=np.int64) if segments is None else np.asarray(segments)
    some = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(np.int64))
    first, second = np.triu_indices(len(some), 1)
    first, second = some[first], some[second]
    is_pair = (parts[first] == parts[second]) & (x[first] != x[second])
    first, second = first[is_pair], second[is_pair]
    slope = float(np.median((y[second] - y[first]) / (x[second] - x[first]))) if len(first) else 0.0
    return slope, float(np.median(y - slope * x))
