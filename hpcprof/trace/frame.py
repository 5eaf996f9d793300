"""Builds, joins and converts tables with the declared columns. Does not read any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import union_categoricals

from hpcprof.trace.columns import (
    ANCHOR_COLUMNS,
    BEFORE_NS,
    CATEGORY,
    COUNTER_COLUMNS,
    SPAN_COLUMNS,
    START_NS,
    Column,
    arrow_schema,
)


def spans_frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """A spans table from arrays, lists (None is null) or single values, sorted by start.

    ``start_ns`` gives the number of rows; a column that is not given is null. Raises ValueError
    for a column that is not declared, or a missing one that cannot be null.
    """
    return _sorted(_build(columns, SPAN_COLUMNS, len(columns[START_NS])))


def empty_spans() -> pd.DataFrame:
    """A spans table with every column and no row."""
    return _build({c.name: [] for c in SPAN_COLUMNS}, SPAN_COLUMNS, 0)


def empty_counters() -> pd.DataFrame:
    """A counters table with every column and no row."""
    return _build({c.name: [] for c in COUNTER_COLUMNS}, COUNTER_COLUMNS, 0)


def anchors_frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Moments of a node read on both of its clocks, from arrays or lists of one length."""
    return _build(columns, ANCHOR_COLUMNS, len(columns[BEFORE_NS]))


def concat_spans(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All rows of several spans tables, sorted by start (ties keep the order given).

    No table gives an empty one.
    """
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return empty_spans()
    joined = {}
    for column in SPAN_COLUMNS:
        parts = [frame[column.name] for frame in frames]
        if column.dtype == CATEGORY and not column.values:
            # pandas.concat turns categories that differ into one Python object per row
            joined[column.name] = pd.Series(union_categoricals(parts))
        else:
            joined[column.name] = pd.concat(parts, ignore_index=True)
    return _sorted(pd.DataFrame(joined))


def to_arrow(frame: pd.DataFrame, columns: tuple[Column, ...]) -> pa.Table:
    """The table as Arrow, without an index."""
    return pa.Table.from_pandas(frame, schema=arrow_schema(columns), preserve_index=False)


def from_arrow(table: pa.Table, columns: tuple[Column, ...]) -> pd.DataFrame:
    """The Arrow table with the declared dtypes; columns the table does not have are left out."""
    built: dict[str, pd.Series[Any]] = {}
    for column in columns:
        if column.name in table.column_names:
            built[column.name] = _from_arrow(table.column(column.name), column)
    return _frame(built, table.num_rows)


def nullable_int(values: Any, is_null: Any, dtype: str) -> Any:
    """A pandas integer array of ``dtype`` that is null where ``is_null``. Never goes through float.

    Raises OverflowError when a valid value does not fit.
    """
    mask = np.asarray(is_null, dtype=bool)
    numbers = np.where(mask, 0, np.asarray(values, dtype=np.int64))
    limits = np.iinfo(dtype.lower())
    if len(numbers) and (numbers.min() < limits.min or numbers.max() > limits.max):
        raise OverflowError(f"a value does not fit {dtype}")
    return pd.arrays.IntegerArray(numbers.astype(dtype.lower()), mask)


def coded(codes: Any, texts: Sequence[str | None]) -> pd.Categorical[Any]:
    """A text column from indices into ``texts``: -1 and None are null, texts may be repeated.

    The way to make a text column without one Python object per row.
    """
    used = [(index, texts[index]) for index in np.unique(codes).tolist() if index >= 0]
    known = sorted({text for _, text in used if text is not None})
    position = {text: index for index, text in enumerate(known)}
    lookup = np.full(len(texts) + 1, -1, dtype=np.int64)
    for index, text in used:
        lookup[index] = -1 if text is None else position[text]
    return pd.Categorical.from_codes(lookup[codes], categories=pd.Index(known, dtype="str"))


def _from_arrow(values: pa.ChunkedArray, column: Column) -> pd.Series[Any]:
    if column.dtype == CATEGORY:
        return _category(values.unify_dictionaries().to_pandas(), column)
    if not column.nullable:
        return _series(values.to_numpy(), column, len(values))
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    numbers = values.fill_null(0).to_numpy()
    return _series(nullable_int(numbers, is_null, column.dtype), column, len(values))


def _build(given: Mapping[str, Any], columns: tuple[Column, ...], rows: int) -> pd.DataFrame:
    unknown = set(given) - {column.name for column in columns}
    if unknown:
        raise ValueError(f"not a declared column: {', '.join(sorted(unknown))}")
    missing = [c.name for c in columns if not c.nullable and c.name not in given]
    if missing:
        raise ValueError(f"missing and cannot be null: {', '.join(missing)}")
    return _frame({c.name: _series(given.get(c.name), c, rows) for c in columns}, rows)


def _frame(columns: dict[str, pd.Series[Any]], rows: int) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(columns, index=pd.RangeIndex(rows))
    return frame


def _series(values: Any, column: Column, rows: int) -> pd.Series[Any]:
    if column.dtype == CATEGORY:
        if values is None or isinstance(values, str):
            values = coded(np.zeros(rows, dtype=np.int64), [values])
        return _category(values, column)
    if values is None:
        values = [None] * rows
    elif np.isscalar(values):
        values = np.full(rows, values)
    elif isinstance(values, pd.Series):
        values = values.array
    series: pd.Series[Any] = pd.Series(values, dtype=column.dtype)
    return series


def _category(values: Any, column: Column) -> pd.Series[Any]:
    series: pd.Series[Any] = pd.Series(values, dtype=CATEGORY).reset_index(drop=True)
    if not column.values:
        if not len(series.cat.categories):  # Parquet gives these another dtype than pandas does
            series = series.cat.set_categories(pd.Index([], dtype="str"))
        return series
    used = {str(value) for value in series.cat.remove_unused_categories().cat.categories}
    if used - set(column.values):
        raise ValueError(f"{column.name} cannot be {', '.join(sorted(used - set(column.values)))}")
    fixed: pd.Series[Any] = series.cat.set_categories(list(column.values))
    return fixed


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    if frame[START_NS].is_monotonic_increasing:
        return frame
    order = np.argsort(frame[START_NS].to_numpy(), kind="stable")
    ordered: pd.DataFrame = frame.iloc[order].reset_index(drop=True)
    return ordered
