"""Puts the times of an nsys export on the node's CLOCK_MONOTONIC. Knows nothing of other nodes.

1. A beacon is two NVTX marks. The first says "CLOCK_MONOTONIC was ``mono`` just before me", the
   second the same of a later reading: monotonic - export time lies between two limits.
2. Both count the same seconds, so the offset is what all beacons have in common, and half of that
   interval is the doubt. (nsys 2022.4: 150 beacons over 150 s had 8 us in common, no drift.)
3. Nothing in common: the export's clock runs at another rate (a TSC that is not disciplined); then
   a line is fitted through the narrow brackets, and the doubt includes what it leaves unexplained.
4. No beacon: the export's UTC start and our pairs of realtime and monotonic, with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.readers.nsys_database import NULL, Ints
from hpcprof.trace.columns import (
    AFTER_NS,
    BEFORE_NS,
    END_NS,
    REALTIME_NS,
    SEQ,
    START_NS,
)

# the start time of nsys 2022.4 was 41 to 47 us off in our measurements; versions may differ
UTC_ERROR_NS = 1_000_000
_ROUNDING_NS = 1_000
_MOST_BEACONS_IN_FIT = 200  # slopes of all pairs: 20 000


@dataclass(frozen=True)
class Placement:
    """``CLOCK_MONOTONIC = t + offset_ns + drift_ppb * (t - reference_ns) / 1e9``.

    ``bound_ns`` is the largest error to expect. ``is_guess`` is set when there was no beacon.
    """

    offset_ns: int
    bound_ns: int
    drift_ppb: int = 0
    reference_ns: int = 0
    is_guess: bool = False

    def apply(self, spans: pd.DataFrame) -> pd.DataFrame:
        """The spans on the node's clock, still sorted."""
        moved = {name: self.moved(spans[name].to_numpy()) for name in (START_NS, END_NS)}
        placed: pd.DataFrame = spans.assign(**moved)
        return placed

    def moved(self, times: Ints) -> Ints:
        """Times of the export as CLOCK_MONOTONIC."""
        # the correction alone may be float: it is small, and exact to a ns for weeks
        drift = (times - self.reference_ns) * (self.drift_ppb / 1e9)
        moved: Ints = times + self.offset_ns + np.rint(drift).astype(np.int64)
        return moved


def place(
    beacons: pd.DataFrame, anchors: pd.DataFrame, utc_epoch_ns: int | None
) -> Placement | None:
    """How to place an export; None when nothing ties it to the node's clock.

    ``beacons`` are the NVTX marks, ``anchors`` our own pairs of the same node (for the brackets of
    beacons whose second mark is missing, and for the fallback).
    """
    times, low, high = _brackets(beacons, anchors)
    if len(times):
        return _from_brackets(times, low, high)
    if utc_epoch_ns is None or not len(anchors):
        return None
    middle = anchors[BEFORE_NS] + (anchors[AFTER_NS] - anchors[BEFORE_NS]) // 2
    real_minus_monotonic = int(_middle((anchors[REALTIME_NS] - middle).to_numpy()))
    return Placement(utc_epoch_ns - real_minus_monotonic, UTC_ERROR_NS, is_guess=True)


def _pairs(beacons: pd.DataFrame) -> pd.DataFrame:
    """First and second mark of each beacon side by side; those with both."""
    first = beacons[beacons["realtime_ns"] != NULL].drop_duplicates("seq")
    second = beacons[beacons["realtime_ns"] == NULL].drop_duplicates("seq")
    second = second[["seq", "time_ns", "monotonic_ns"]]
    pairs: pd.DataFrame = first.merge(second, on="seq", suffixes=("", "_after"))
    return pairs


def _brackets(beacons: pd.DataFrame, anchors: pd.DataFrame) -> tuple[Ints, Ints, Ints]:
    """Time of the first mark and the limits of monotonic - time, one per usable beacon."""
    pairs = _pairs(beacons)
    time, mono = pairs["time_ns"].to_numpy(), pairs["monotonic_ns"].to_numpy()
    after_time, after_mono = (pairs[f"{c}_after"].to_numpy() for c in ("time_ns", "monotonic_ns"))
    low = np.maximum(mono - time, after_mono - after_time)
    high = after_mono - time
    # a window may close between the two marks; our own record of the beacon has its end as well
    lone = beacons[(beacons["realtime_ns"] != NULL) & ~beacons["seq"].isin(pairs["seq"])]
    lone = lone.merge(anchors[[SEQ, BEFORE_NS, AFTER_NS]], on="seq")
    lone = lone[lone["monotonic_ns"] == lone[BEFORE_NS]]
    lone_time = lone["time_ns"].to_numpy()
    return (
        np.concatenate([time, lone_time]),
        np.concatenate([low, lone[BEFORE_NS].to_numpy() - lone_time]),
        np.concatenate([high, lone[AFTER_NS].to_numpy() - lone_time]),
    )


def _from_brackets(times: Ints, low: Ints, high: Ints) -> Placement:
    offset, doubt = _common(low, high)
    if doubt is not None:
        return Placement(offset, doubt)
    drift_ppb, reference = _drift(times, low, high)
    rate = np.rint((times - reference) * (drift_ppb / 1e9)).astype(np.int64)
    low, high = low - rate, high - rate
    offset, doubt = _common(low, high)
    if doubt is None:
        outside = np.maximum(np.maximum(low - offset, offset - high), 0)
        doubt = int(outside.max()) + int((high - low).min()) // 2 + 1
    return Placement(offset, doubt, drift_ppb, reference)


def _common(low: Ints, high: Ints) -> tuple[int, int | None]:
    """Middle and half width of what all intervals share; None as width when they share nothing."""
    lowest, highest = int(low.max()), int(high.min())
    if lowest > highest + _ROUNDING_NS:
        return int(_middle(low + (high - low) // 2)), None
    return lowest + (highest - lowest) // 2, max((abs(highest - lowest) + 1) // 2, 1)


def _drift(times: Ints, low: Ints, high: Ints) -> tuple[int, int]:
    """Theil-Sen slope in ppb through the middles of the narrower half, and its reference time."""
    width = high - low
    keep = np.flatnonzero(width <= np.median(width))
    keep = keep[:: -(-len(keep) // _MOST_BEACONS_IN_FIT)]
    t, y = times[keep], (low + width // 2)[keep]
    one, two = np.triu_indices(len(keep), k=1)
    apart = t[two] - t[one]
    valid = apart > 0
    if not valid.any():
        return 0, int(t[0])
    slopes = (y[two] - y[one])[valid] / apart[valid]
    return round(float(np.median(slopes)) * 1e9), int(t[0])


def _middle(values: Any) -> Any:
    """The median without a mean: float64 cannot hold epoch nanoseconds."""
    return np.sort(values)[len(values) // 2]
