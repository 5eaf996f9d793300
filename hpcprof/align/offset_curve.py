"""``OffsetCurve``: an offset between two clocks as a piecewise linear function, with its bound.

Exact for epoch nanoseconds: only the small part that drift adds goes through float64. Does not
estimate anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class OffsetCurve:
    """Knots (node time, offset, half-width), all int64 ns; times strictly increase, one at least.

    Between knots the offset is interpolated, outside it goes on with ``slope``. The bound is the
    half-width, interpolated, plus ``growth_inside`` (ns per ns) times the distance to the nearest
    knot, plus ``jumps_ns`` of that interval (one fewer than knots); outside ``growth_outside``
    times the distance to the last knot.
    """

    times_ns: Int64s
    offsets_ns: Int64s
    widths_ns: Int64s
    slope: float
    growth_inside: float
    growth_outside: float
    jumps_ns: Int64s

    def __post_init__(self) -> None:
        if not len(self.times_ns) or (np.diff(self.times_ns) <= 0).any():
            raise ValueError("the knots of a curve must be one at least, at increasing times")
        if (np.diff(self.times_ns + self.offsets_ns) < 0).any():
            raise ValueError("the knots of a curve would turn time back")

    def shifted(self, by_ns: int) -> OffsetCurve:
        """The same curve with ``by_ns`` added to every offset."""
        return replace(self, offsets_ns=self.offsets_ns + np.int64(by_ns))

    def offset_at(self, times: Int64s) -> Int64s:
        """Offsets (int64 ns) at node times, rounded so that order in time is kept."""
        knot, distance = self._nearest_before(times)
        slopes = np.append(np.diff(self.offsets_ns) / np.diff(self.times_ns), self.slope)
        slope = np.where(distance < 0, self.slope, slopes[knot])
        offsets: Int64s = self.offsets_ns[knot] + np.floor(distance * slope + 0.5).astype(np.int64)
        return offsets

    def bound_at(self, times: Int64s) -> Int64s:
        """Largest error (int64 ns) of the offset at node times; 1 ns of it is rounding."""
        knot, distance = self._nearest_before(times)
        is_inside = (distance >= 0) & (knot < len(self.times_ns) - 1)
        after = np.minimum(knot + 1, len(self.times_ns) - 1)
        length = np.where(is_inside, self.times_ns[after] - self.times_ns[knot], 1)
        widths = self.widths_ns.astype(np.float64)
        part = np.where(is_inside, distance / length, 0.0)
        inside = (
            (widths[after] - widths[knot]) * part
            + self.growth_inside * np.minimum(distance, length - distance)
            + np.append(self.jumps_ns, 0)[knot]
        )
        outside = self.growth_outside * np.abs(distance)
        grown = widths[knot] + np.where(is_inside, inside, outside)
        return np.ceil(grown).astype(np.int64) + 1

    def largest_bound_ns(self, first_ns: int, last_ns: int) -> int:
        """The largest bound at the knots, between them, and from ``first_ns`` to ``last_ns``."""
        middles = self.times_ns[:-1] + np.diff(self.times_ns) // 2
        ends = np.array([first_ns, last_ns], dtype=np.int64)
        return int(self.bound_at(np.concatenate([self.times_ns, middles, ends])).max())

    def _nearest_before(self, times: Int64s) -> tuple[Int64s, Int64s]:
        """Index of the last knot not after each time (the first knot before all), and distance."""
        knot = np.maximum(np.searchsorted(self.times_ns, times, side="right") - 1, 0)
        return knot, times - self.times_ns[knot]
