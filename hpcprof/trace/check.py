"""``check_spans``: the invariants of the spans table. Repairs nothing."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hpcprof.trace.columns import CATEGORY, END_NS, SPAN_COLUMNS, START_NS, Column


def check_spans(frame: pd.DataFrame) -> pd.DataFrame:
    """Return ``frame`` unchanged, or raise ValueError naming the column and what is wrong with it.

    Called at every reader's exit: a violation is a mistake in hpcprof, not in the user's files.
    An empty table with the right columns is valid.
    """
    expected = [column.name for column in SPAN_COLUMNS]
    if list(frame.columns) != expected:
        raise ValueError(f"columns are {list(frame.columns)}, expected {expected}")
    for column in SPAN_COLUMNS:
        _check_column(frame[column.name], column)
    reversed_spans = int((frame[END_NS] < frame[START_NS]).sum())
    if reversed_spans:
        raise ValueError(f"{reversed_spans} spans end before they start")
    if not frame[START_NS].is_monotonic_increasing:
        raise ValueError("spans are not sorted by start_ns")
    return frame


def _check_column(series: pd.Series[Any], column: Column) -> None:
    if str(series.dtype) != column.dtype:
        raise ValueError(f"column {column.name} is {series.dtype}, expected {column.dtype}")
    if column.dtype == CATEGORY and column.values and tuple(series.cat.categories) != column.values:
        raise ValueError(f"column {column.name} has values other than {', '.join(column.values)}")
    if not column.nullable and bool(series.isna().any()):
        raise ValueError(f"column {column.name} has {int(series.isna().sum())} nulls")
