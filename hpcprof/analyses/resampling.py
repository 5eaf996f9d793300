"""Blocks of consecutive steps: neighbouring steps are alike, so single ones must not be resampled.

Deterministic: the same run gives the same interval every time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCKS = 8
DRAWS = 200  # algorithms, section 5
MAX_BLOCK_STEPS = 10


def block_medians(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Medians of up to 8 runs of consecutive rows [block, column]; one row per block if fewer."""
    parts = np.array_split(values, min(BLOCKS, len(values)), axis=0)
    return np.vstack([np.median(part, axis=0) for part in parts])


def block_draws(count: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Row numbers [draw, count] of a circular block bootstrap over ``count`` steps.

    Samples that are drawn independently of each other need a ``seed`` each.
    """
    length = max(1, min(MAX_BLOCK_STEPS, count // 5))
    generator = np.random.default_rng(seed)
    blocks = -(-count // length)
    starts = generator.integers(0, count, (DRAWS, blocks, 1))
    return ((starts + np.arange(length)) % count).reshape(DRAWS, -1)[:, :count]
