"""The only place where a number becomes text for people."""

from __future__ import annotations

import math
from typing import Iterable


def duration(ns: float) -> str:
    """A time given in ns: "48 ms", "1.23 s", "12 min"; three digits at most."""
    if math.isnan(ns):
        return "unknown"
    size = abs(ns)
    for limit, scale, unit in ((1e3, 1, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if size < limit:
            return f"{_digits(ns / scale)} {unit}"
    seconds = ns / 1e9
    if abs(seconds) < 120:
        return f"{_digits(seconds)} s"
    if abs(seconds) < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def percent(fraction: float) -> str:
    """A fraction as percent: "17 %", "1.1 %"; one decimal below ten."""
    if math.isnan(fraction):
        return "unknown"
    value = 100 * fraction
    return f"{value:.1f} %" if abs(value) < 9.95 and round(value, 1) != 0 else f"{value:.0f} %"


def percent_interval(low: float, high: float) -> str:
    """A confidence interval beside a percentage: "[15–19]"."""
    digits = 1 if max(abs(low), abs(high)) < 0.0995 else 0
    return f"[{100 * low:.{digits}f}–{100 * high:.{digits}f}]"


def nbytes(count: float) -> str:
    """Bytes with a decimal prefix: "1.2 MB"."""
    for limit, scale, unit in ((1e3, 1, "B"), (1e6, 1e3, "kB"), (1e9, 1e6, "MB")):
        if abs(count) < limit:
            return f"{_digits(count / scale)} {unit}"
    return f"{_digits(count / 1e9)} GB"


def number_list(numbers: Iterable[int]) -> str:
    """Ascending numbers with runs shortened: "0-3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def counted(count: int, noun: str) -> str:
    """ "1 rank", "3 ranks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ranks(numbers: Iterable[int]) -> str:
    """ "rank 3", "ranks 0-2, 5"."""
    listed = sorted(set(numbers))
    return f"rank{'' if len(listed) == 1 else 's'} {number_list(listed)}"


def _digits(value: float) -> str:
    size = abs(value)
    if size >= 99.5:
        return f"{value:.0f}"
    text = f"{value:.1f}" if size >= 9.95 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")
