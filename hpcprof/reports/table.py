"""``Table``: rows of text, for every output alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Column heads and rows of text; ``note`` stands below. ``text_columns`` are no numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    text_columns: tuple[int, ...] = (0, 1, 2)
