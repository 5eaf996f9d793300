"""What an allocator of TensorFlow did while it was watched: blocks, and how full it was.

Two tables on the clock of the spans of the same rank, one row per block and one per change:

blocks   ``start_ns``, ``end_ns``; ``allocator`` (``GPU_0_bfc``); ``bytes`` of the allocator's chunk
         and ``requested_bytes``, what was asked for; ``op``, the operation it was made for, and its
         ``phase`` ("" for none); ``op_end_ns``, when that operation ended (0: not known);
         ``freed_in``, the phase of the operation that let go of it; ``is_background``: made by
         tf.data; ``is_older``: it was there before anybody watched (``start_ns`` is then the first
         moment); ``is_freed``: it was let go (else ``end_ns`` is just after the last moment).
levels   ``time_ns``, ``allocator``, ``allocated_bytes`` after the change, ``peak_bytes`` until
         then, ``limit_bytes`` that it may give away in all, ``fragmentation_frac``
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

BLOCK_COLUMNS = (
    *("start_ns", "end_ns", "allocator", "bytes", "requested_bytes", "op", "phase", "op_end_ns"),
    *("freed_in", "is_background", "is_older", "is_freed"),
)
LEVEL_COLUMNS = (
    *("time_ns", "allocator", "allocated_bytes", "peak_bytes", "limit_bytes"),
    "fragmentation_frac",
)


def _empty(columns: tuple[str, ...]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame({name: [] for name in columns})
    return frame


@dataclass(frozen=True)
class MemoryRecord:
    """The tables of one rank; both without rows where nothing was watched."""

    blocks: pd.DataFrame = field(default_factory=lambda: _empty(BLOCK_COLUMNS))
    levels: pd.DataFrame = field(default_factory=lambda: _empty(LEVEL_COLUMNS))
