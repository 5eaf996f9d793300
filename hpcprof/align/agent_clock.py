"""Aligns a node with the reference node by the exchanges of their agents.

1. A ping and its answer say that reference - node lies in [answered - received, arrived - sent];
   within a burst these intervals have a point in common: one sample per burst, with a half-width.
2. The median of the rates between neighbouring samples tells which interval holds a step.
3. Theil-Sen over the bursts, within stretches without a step, is the drift, for outside.

Assumes that the rate changes by no more than RHO_PPB. A step between the only two bursts, or one
smaller than their half-widths, cannot be told from drift.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hpcprof.align.drift import MAX_DRIFT, MAX_DRIFT_PPB, RHO, RHO_PPB, theil_sen
from hpcprof.align.node_clock import TIGHT, NodeClock
from hpcprof.align.offset_curve import Floats, Int64s, OffsetCurve
from hpcprof.errors import InputError
from hpcprof.trace.columns import (
    ANSWERED_NS,
    ARRIVED_NS,
    BURST,
    EXCHANGE_COLUMNS,
    RECEIVED_NS,
    SENT_NS,
)

METHOD = "agent ping-pong"


def fit(node: str, exchanges: pd.DataFrame, run_ns: tuple[int, int]) -> NodeClock:
    """The node's clock against the reference node's CLOCK_MONOTONIC.

    ``run_ns``: first and last time of the run on the node's clock, for the summary's bound. Raises
    InputError when no exchange can be used.
    """
    times, offsets, widths, warnings = _samples(node, exchanges)
    if not len(times):
        raise InputError(f"node {node}: its agent exchanged nothing usable with the reference")
    curve, residual_ns, jumped = _fitted(node, times, offsets, widths)
    return NodeClock(
        node=node,
        offset_ns=int(offsets[0]),
        drift_ppb=-round(curve.slope * 1e9),
        residual_ns=round(residual_ns),
        bound_ns=curve.largest_bound_ns(*run_ns),
        method=METHOD,
        status=TIGHT,
        samples=len(times),
        warnings=(*warnings, *jumped),
        rho_ppb=RHO_PPB,
        curve=curve,
    )


def _fitted(
    node: str, times: Int64s, offsets: Int64s, widths: Int64s
) -> tuple[OffsetCurve, float, list[str]]:
    """The curve through the samples, what the line leaves unexplained (ns), a warning of steps."""
    is_step = _steps(times, offsets, widths)
    segments = np.concatenate([[0], np.cumsum(is_step)])
    x, y = times - times[0], offsets - offsets[0]
    slope, intercept = theil_sen(x, y, segments)
    doubt = _slope_doubt(x, y, widths, segments, slope)
    lengths = np.diff(x)
    jumps = np.where(is_step, np.abs(np.diff(y) - slope * lengths), 0.0)
    warnings = [_step_warning(node, x, jumps)] if jumps.any() else []
    # in an interval with a step, the drift on either side of it is known no better than outside
    jumps += np.where(is_step, (doubt + RHO) * lengths, 0.0)
    curve = OffsetCurve(
        times_ns=times,
        offsets_ns=offsets,
        widths_ns=widths,
        slope=slope,
        growth_inside=RHO,
        growth_outside=min(RHO + doubt, MAX_DRIFT + abs(slope)),
        jumps_ns=np.ceil(jumps).astype(np.int64),
    )
    return curve, float(np.abs(y - slope * x - intercept).max()), warnings


def _samples(node: str, exchanges: pd.DataFrame) -> tuple[Int64s, Int64s, Int64s, list[str]]:
    """Node times, offsets, half-widths of the bursts, in order of time; and what was odd."""
    table = {k.name: exchanges[k.name].to_numpy(dtype=np.int64) for k in EXCHANGE_COLUMNS}
    low = table[ANSWERED_NS] - table[RECEIVED_NS]
    high = table[ARRIVED_NS] - table[SENT_NS]
    is_whole = (table[RECEIVED_NS] > table[SENT_NS]) & (table[ANSWERED_NS] >= table[ARRIVED_NS])
    is_usable = is_whole & (high >= low)
    samples, torn = [], 0
    for burst in np.unique(table[BURST][is_usable]):
        rows = np.flatnonzero(is_usable & (table[BURST] == burst))
        sample, is_torn = _burst(
            table[SENT_NS][rows], table[RECEIVED_NS][rows], low[rows], high[rows]
        )
        samples.append(sample)
        torn += is_torn
    kept, turned = _forward(sorted(samples))
    warnings = []
    if torn:
        warnings.append(f"node {node}: in {torn} bursts of its agent the round trips disagree")
    if turned:
        warnings.append(f"node {node}: {turned} bursts of its agent run backwards; left out")
    columns = _without_wide(np.array(kept, dtype=np.int64).reshape(-1, 3))
    return columns[:, 0], columns[:, 1], columns[:, 2], warnings


def _burst(
    sent: Int64s, received: Int64s, low: Int64s, high: Int64s
) -> tuple[tuple[int, int, int], bool]:
    """(time, offset, half-width) where the intervals of a burst overlap, and if they do not.

    The lower limit holds when the answer came, the upper one when the ping left; carried to the
    middle of the narrowest round trip they are widened by what a clock drifts at most.
    """
    narrowest = int(np.argmin(high - low))
    time = int(sent[narrowest] + (received[narrowest] - sent[narrowest]) // 2)
    low = low - np.abs(received - time) * MAX_DRIFT_PPB // 1_000_000_000 - 1
    high = high + np.abs(sent - time) * MAX_DRIFT_PPB // 1_000_000_000 + 1
    lowest, highest = int(low.max()), int(high.min())
    is_torn = lowest > highest
    if is_torn:  # whoever is right, the truth lies within all of them together
        lowest, highest = int(low.min()), int(high.max())
    return (time, lowest + (highest - lowest) // 2, (highest - lowest) // 2 + 1), is_torn


def _forward(samples: list[tuple[int, int, int]]) -> tuple[list[tuple[int, int, int]], int]:
    """The samples that advance on both clocks, and how many do not."""
    kept: list[tuple[int, int, int]] = []
    for sample in samples:
        is_first = not kept
        if is_first or (sample[0] > kept[-1][0] and sum(sample[:2]) > sum(kept[-1][:2])):
            kept.append(sample)
    return kept, len(samples) - len(kept)


def _without_wide(samples: Int64s) -> Int64s:
    """Without samples (rows time, offset, half-width) that say less than the others do.

    A burst on a busy network or processor: kept, it would widen the bound around it. One that
    contradicts the others stays.
    """
    for time in samples[np.argsort(-samples[:, 2], kind="stable"), 0]:
        at = int(np.searchsorted(samples[:, 0], time))
        if samples[at, 2] <= 2 * np.median(samples[:, 2]):
            break
        rest = np.delete(samples, at, axis=0)
        if len(rest) < 2:
            break
        expected, bound = _told_by_others(rest, samples[at, 0])
        width = samples[at, 2]
        if bound < width and abs(expected - samples[at, 1]) <= width + bound:
            samples = rest
    return samples


def _told_by_others(samples: Int64s, time: int) -> tuple[int, float]:
    """Offset and its bound at a time, from samples before and after, or beyond them all."""
    after = int(np.searchsorted(samples[:, 0], time))
    if 0 < after < len(samples):
        one, two = samples[after - 1], samples[after]
        length = int(two[0] - one[0])
        part = int(time - one[0]) / length
        bound = one[2] + (two[2] - one[2]) * part + RHO * min(part, 1 - part) * length
        return int(one[1] + round((two[1] - one[1]) * part)), float(bound)
    nearest = samples[0] if after == 0 else samples[-1]
    x, y = samples[:, 0] - samples[0, 0], samples[:, 1] - samples[0, 1]
    segments = np.zeros(len(samples), dtype=np.int64)
    slope, _ = theil_sen(x, y, segments)
    doubt = _slope_doubt(x, y, samples[:, 2], segments, slope)
    away = int(time - nearest[0])
    return int(nearest[1] + round(slope * away)), float(nearest[2] + (RHO + doubt) * abs(away))


def _steps(times: Int64s, offsets: Int64s, widths: Int64s) -> Any:
    """Which intervals between samples hold a jump of the offset that no drift explains.

    All rates agree within RHO and their own doubts; the one in the middle is taken as clean. Of
    two rates that disagree nobody knows which is: both intervals are doubtful.
    """
    lengths = np.diff(times).astype(np.float64)
    rates = np.diff(offsets) / lengths
    doubts = (widths[:-1] + widths[1:]) / lengths
    is_step = np.abs(rates) > MAX_DRIFT + doubts
    clean = np.flatnonzero(~is_step)
    if not len(clean):
        return is_step
    middle = clean[np.argsort(rates[clean], kind="stable")[(len(clean) - 1) // 2]]
    is_step |= np.abs(rates - rates[middle]) > doubts + doubts[middle] + RHO
    if len(clean) == 2 and is_step[clean].any():
        is_step[clean] = True
    return is_step


def _slope_doubt(x: Int64s, y: Int64s, widths: Int64s, segments: Int64s, slope: float) -> float:
    """How far the drift may be off the mean rate, by the longest stretch without a step."""
    doubt = MAX_DRIFT
    for segment in np.unique(segments):
        rows = np.flatnonzero(segments == segment)
        first, last = rows[0], rows[-1]
        length = float(x[last] - x[first])
        if length > 0:
            off = abs(float(y[last] - y[first]) / length - slope)
            doubt = min(doubt, off + float(widths[first] + widths[last]) / length)
    return doubt


def _step_warning(node: str, x: Int64s, jumps: Floats) -> str:
    steps = np.flatnonzero(jumps)
    return (
        f"node {node}: its clock or the reference's was set or slewed: in {len(steps)} of "
        f"{len(jumps)} intervals between bursts it moved by up to {jumps.max() / 1e6:.3f} ms more "
        f"than drift explains, first {x[steps[0]] / 1e9:.0f} s after the first burst. Order "
        "between this node and others is doubtful by that much in those times."
    )
