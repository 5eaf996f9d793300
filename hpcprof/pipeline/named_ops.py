"""The steps whose operations were named: what is read of each rank, and which steps these are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from hpcprof.analyses import op_phases
from hpcprof.analyses.op_phases import NamedWindows
from hpcprof.trace.columns import EXECUTOR_OP, PHASE, SOURCE, STEP, TF_PROFILE
from hpcprof.trace.store import TraceStore


@dataclass(frozen=True)
class NamedOps:
    """Of the ranks that named operations. ``frames``: rank → ``op_phases.per_rank``; ``device_ns``:
    rank → ``op_phases.device_times``.
    """

    frames: Mapping[int, pd.DataFrame]
    device_ns: Mapping[int, Mapping[str, float]]
    windows: NamedWindows


def named_ops(store: TraceStore, within: range | None = None) -> NamedOps:
    """One pass over the ranks, which reads little of those without operations.

    ``within``: frames of these steps only; None means all.
    """
    frames: dict[int, pd.DataFrame] = {}
    device_ns: dict[int, dict[str, float]] = {}
    nvtx: dict[int, tuple[int, int]] = {}
    tf_profiler: dict[int, tuple[int, int]] = {}
    for rank in store.ranks():
        ops = store.read_spans(rank, [STEP, SOURCE, PHASE], [EXECUTOR_OP]).dropna(subset=[STEP])
        ops = ops[~ops[PHASE].isin(op_phases.BESIDE)]
        if not len(ops):
            continue
        is_tf, named_steps = ops[SOURCE] == TF_PROFILE, ops[STEP].astype("int64")
        for windows, chosen in ((nvtx, named_steps[~is_tf]), (tf_profiler, named_steps[is_tf])):
            if len(chosen):
                windows[rank] = int(chosen.min()), int(chosen.max())
        spans = store.read_spans(rank, op_phases.COLUMNS_READ, op_phases.KINDS_READ)
        frame = op_phases.per_rank(spans)
        on_device = store.read_spans(
            rank, op_phases.DEVICE_COLUMNS_READ, op_phases.ON_DEVICE, op_phases.PHASES
        )
        device_ns[rank] = op_phases.device_times(on_device, frame)
        frames[rank] = frame if within is None else frame.loc[frame.index.isin(within)]
    return NamedOps(frames, device_ns, NamedWindows(nvtx, tf_profiler))
