"""The spans table: building, joining, checking, storing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcprof.errors import InputError
from hpcprof.trace import (
    Moment,
    RankInfo,
    SourceState,
    Trace,
    TraceStore,
    check_spans,
    concat_spans,
    empty_spans,
    spans_frame,
)
from hpcprof.trace.columns import KINDS, SPAN_COLUMNS

pytestmark = pytest.mark.unit

EPOCH_NS = 1_764_547_200_123_456_789  # not representable as float64


def small_spans() -> pd.DataFrame:
    return spans_frame(
        {
            "start_ns": [EPOCH_NS + 1, EPOCH_NS, EPOCH_NS + 2],
            "end_ns": [EPOCH_NS + 3, EPOCH_NS + 9, EPOCH_NS + 2],
            "kind": ["kernel", "step", "memcpy"],
            "activity": ["compute", None, "copy"],
            "name": ["gemm", "step", "memcpy HtoD"],
            "lane": ["stream 7", "thread 1", "stream 8"],
            "replica": 0,
            "device": [3, None, 3],
            "step": [7, 7, None],
            "bytes": [None, None, 2**53 + 1],
            "source": "nsys",
        }
    )


def info(rank: int = 13) -> RankInfo:
    state = SourceState("spans", "PARTIAL", "cut", 3, 7, 7, 0, ("one record was cut",))
    return RankInfo(
        rank, 1, "node1", 16, 4711, None, Moment(EPOCH_NS, 5), None, "PARTIAL", "cut",
        {"spans": state}, ("warned",),
    )  # fmt: skip


def test_rows_are_sorted_by_start_and_keep_every_nanosecond() -> None:
    frame = check_spans(small_spans())
    assert frame["start_ns"].tolist() == [EPOCH_NS, EPOCH_NS + 1, EPOCH_NS + 2]
    assert frame["kind"].tolist() == ["step", "kernel", "memcpy"]
    assert frame["bytes"].tolist() == [pd.NA, pd.NA, 2**53 + 1]
    assert frame["device"].tolist() == [pd.NA, 3, 3]
    assert frame["phase"].isna().all()


def test_columns_are_those_declared() -> None:
    frame = empty_spans()
    assert list(frame.columns) == [column.name for column in SPAN_COLUMNS]
    assert [str(dtype) for dtype in frame.dtypes] == [column.dtype for column in SPAN_COLUMNS]
    assert tuple(frame["kind"].cat.categories) == KINDS
    check_spans(frame)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": ["kernel", "step", "gpu"]}, "kind cannot be gpu"),
        ({"activity": ["compute", None, "idle"]}, "activity cannot be idle"),
        ({"rank": [0, 0, 0]}, "not a declared column: rank"),
    ],
)
def test_values_outside_the_declaration_are_refused(change: dict, message: str) -> None:
    columns = {
        "start_ns": [0, 1, 2],
        "end_ns": [1, 2, 3],
        "kind": "host",
        "name": "a",
        "source": "s",
    }
    with pytest.raises(ValueError, match=message):
        spans_frame({**columns, **change})


def test_missing_column_that_cannot_be_null_is_refused() -> None:
    with pytest.raises(ValueError, match="missing and cannot be null: name, source"):
        spans_frame({"start_ns": [0], "end_ns": [1], "kind": "host"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: f.assign(start_ns=f["start_ns"].astype(float)), "start_ns is float64"),
        (lambda f: f.assign(end_ns=f["start_ns"] - 1), "3 spans end before they start"),
        (lambda f: f.iloc[::-1], "not sorted"),
        (lambda f: f.assign(kind=f["kind"].astype(object)), "kind is object"),
        (lambda f: f.assign(name=f["name"].cat.set_categories(["step"])), "name has 2 nulls"),
        (lambda f: f.drop(columns="seq"), "columns are"),
    ],
)
def test_broken_tables_are_refused(spoil, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_spans(spoil(small_spans()))


def test_joined_tables_are_sorted_and_keep_their_dtypes() -> None:
    other = small_spans()
    other[["start_ns", "end_ns"]] -= 1
    other["name"] = other["name"].cat.rename_categories({"gemm": "conv"})
    joined = check_spans(concat_spans([small_spans(), empty_spans(), other]))
    assert joined["name"].tolist() == ["step", "step", "conv", "gemm", "memcpy HtoD", "memcpy HtoD"]
    assert len(check_spans(concat_spans([]))) == 0


def test_store_returns_what_was_written(tmp_path) -> None:
    store = TraceStore(tmp_path / "store")
    assert store.ranks() == []
    store.write(Trace(info(), small_spans()))
    store.write(Trace(info(2), empty_spans()))
    assert store.ranks() == [2, 13]
    assert store.rank_info(13) == info()
    pd.testing.assert_frame_equal(check_spans(store.read_spans(13)), small_spans())
    assert len(check_spans(store.read_spans(2))) == 0
    assert len(store.read_counters(13)) == 0


def test_store_reads_the_columns_and_kinds_asked_for(tmp_path) -> None:
    store = TraceStore(tmp_path)
    store.write(Trace(info(), small_spans()))
    frame = store.read_spans(13, columns=["step", "start_ns"], kinds=["kernel", "step"])
    assert set(frame.columns) == {"start_ns", "step"}
    assert frame["start_ns"].tolist() == [EPOCH_NS, EPOCH_NS + 1]
    assert frame["step"].tolist() == [7, 7]
    assert store.read_spans(13, kinds=["io"]).empty


def test_writing_again_replaces_and_a_torn_write_counts_as_absent(tmp_path) -> None:
    store = TraceStore(tmp_path)
    store.write(Trace(info(), small_spans()))
    store.write(Trace(info(), small_spans().head(1)))
    assert len(store.read_spans(13)) == 1
    assert sorted(p.name for p in (tmp_path / "rank=00013").iterdir()) == [
        "counters.parquet",
        "rank.json",
        "spans.parquet",
    ]
    (tmp_path / "rank=00013" / "rank.json").unlink()
    assert store.ranks() == []
    with pytest.raises(InputError, match="rank 13 of the store is missing"):
        store.read_spans(13)


def test_store_of_another_version_is_refused(tmp_path) -> None:
    store = TraceStore(tmp_path)
    store.write(Trace(info(), small_spans()))
    record = tmp_path / "rank=00013" / "rank.json"
    record.write_text(record.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(InputError, match=r"rank 13 .* another version .* Run collect again"):
        store.rank_info(13)


def test_damaged_parquet_names_the_rank(tmp_path) -> None:
    store = TraceStore(tmp_path)
    store.write(Trace(info(), small_spans()))
    (tmp_path / "rank=00013" / "spans.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(InputError, match="rank 13: the store cannot be read"):
        store.read_spans(13)


def test_many_row_groups_keep_order(tmp_path) -> None:
    rows = 300_000
    frame = spans_frame(
        {
            "start_ns": np.arange(rows) + EPOCH_NS,
            "end_ns": np.arange(rows) + EPOCH_NS,
            "kind": "kernel",
            "name": "k",
            "source": "nsys",
        }
    )
    store = TraceStore(tmp_path)
    store.write(Trace(info(), frame))
    pd.testing.assert_frame_equal(store.read_spans(13), frame)
