"""The one table everything is computed from: its columns, invariants, records and Parquet store.

Knows nothing of file formats, clocks or judgement.
"""

from hpcprof.trace.check import check_spans
from hpcprof.trace.frame import (
    anchors_frame,
    concat_spans,
    empty_counters,
    empty_spans,
    spans_frame,
)
from hpcprof.trace.model import Gpu, Hang, JobInfo, Moment, RankInfo, SourceState, Trace
from hpcprof.trace.store import TraceStore

__all__ = [
    "Gpu",
    "Hang",
    "JobInfo",
    "Moment",
    "RankInfo",
    "SourceState",
    "Trace",
    "TraceStore",
    "anchors_frame",
    "check_spans",
    "concat_spans",
    "empty_counters",
    "empty_spans",
    "spans_frame",
]
