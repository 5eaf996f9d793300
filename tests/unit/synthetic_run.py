"""Arrival frames and spans of a run with known truth, for tests of analyses and rules."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from hpcprof.analyses.arrivals import ALL_PIECES
from hpcprof.trace import columns as c
from hpcprof.trace.frame import spans_frame

MS = 1_000_000
# a healthy step of 200 ms: what each piece takes
HEALTHY_MS = {c.INPUT: 2.0, c.FORWARD: 60.0, c.BACKWARD: 110.0, c.OPTIMIZER: 3.0, "host": 5.0}
TRANSFER_MS = 20.0


def frames(
    ranks: int,
    steps: int = 60,
    extra_ms: Mapping[tuple[int, str], float] | None = None,
    noise: float = 0.01,
    seed: int = 1,
) -> dict[int, pd.DataFrame]:
    """Per rank what ``arrivals.per_rank`` would give; ``extra_ms`` is keyed (rank, piece)."""
    generator = np.random.default_rng(seed)
    pieces = {}
    for rank in range(ranks):
        for piece in ALL_PIECES:
            mean = HEALTHY_MS.get(piece, 0.0) + (extra_ms or {}).get((rank, piece), 0.0)
            if piece == c.COMPUTE_PHASE and not mean:
                pieces[rank, piece] = np.zeros(steps, np.int64)
                continue
            drawn = mean * np.exp(generator.normal(0, noise, steps)) * MS
            pieces[rank, piece] = drawn.astype(np.int64)
    arrivals = np.stack([sum(pieces[r, p] for p in ALL_PIECES) for r in range(ranks)])
    last = arrivals.max(axis=0)
    ends = np.cumsum(last + int(TRANSFER_MS * MS))
    result = {}
    for rank in range(ranks):
        frame = pd.DataFrame({f"{piece}_ns": pieces[rank, piece] for piece in ALL_PIECES})
        frame["arrival_ns"] = arrivals[rank]
        frame["sync_ns"] = last - arrivals[rank] + int(TRANSFER_MS * MS)
        frame["end_ns"] = ends
        frame["bytes"] = 1000
        result[rank] = frame.rename_axis("step")
    return result


def spans(rows: list[tuple[str, int, int, int]]) -> pd.DataFrame:
    """A spans table of phases: (phase, step, start ms, end ms); ``step`` rows are steps."""
    kinds = [c.STEP_KIND if name == "step" else c.PHASE_KIND for name, *_ in rows]
    return spans_frame(
        {
            c.START_NS: [start * MS for _, _, start, _ in rows],
            c.END_NS: [end * MS for *_, end in rows],
            c.KIND: kinds,
            c.NAME: [name for name, *_ in rows],
            c.PHASE: [None if name == "step" else name for name, *_ in rows],
            c.STEP: [step for _, step, *_ in rows],
            c.BYTES: [8 if name == c.ALLREDUCE else None for name, *_ in rows],
            c.SOURCE: "hpcprof",
        }
    )
