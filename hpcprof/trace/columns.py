"""The columns of the tables (spans, counters, anchors, exchanges): each once; all import these.

Does not check tables (``check``) and does not build them (``frame``).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

START_NS = "start_ns"
END_NS = "end_ns"
KIND = "kind"
ACTIVITY = "activity"
NAME = "name"
LANE = "lane"
REPLICA = "replica"
DEVICE = "device"
STEP = "step"
PHASE = "phase"
BYTES = "bytes"
OP = "op"
COMM = "comm"
SEQ = "seq"
CORRELATION = "correlation"
SOURCE = "source"
TIME_NS = "time_ns"
VALUE = "value"
BEFORE_NS = "before_ns"
AFTER_NS = "after_ns"
REALTIME_NS = "realtime_ns"
BURST = "burst"
SENT_NS = "sent_ns"
ARRIVED_NS = "arrived_ns"
ANSWERED_NS = "answered_ns"
RECEIVED_NS = "received_ns"

# kind: what a span is
KERNEL, MEMCPY, MEMSET, COLLECTIVE, HOST = "kernel", "memcpy", "memset", "collective", "host"
EXECUTOR_OP, IO, STEP_KIND, PHASE_KIND = "op", "io", "step", "phase"
RUNTIME, SYNC = "runtime", "sync"
BUSY = "busy"  # the profiler of the rank starts, stops or writes; the training goes on meanwhile
KINDS = (
    *(KERNEL, MEMCPY, MEMSET, COLLECTIVE, HOST, EXECUTOR_OP),
    *(IO, STEP_KIND, PHASE_KIND, RUNTIME, SYNC, BUSY),
)

# source: the one that analyses tell from all others, as its steps are a window of its own
TF_PROFILE = "tfprof"

# activity: what the replica was doing
COMPUTE, COLLECTIVE_ACTIVITY, COPY, INPUT_ACTIVITY = "compute", "collective", "copy", "input"
ACTIVITIES = (COMPUTE, COLLECTIVE_ACTIVITY, COPY, INPUT_ACTIVITY)

# phase: part of a step
INPUT, H2D, FORWARD, BACKWARD = "input", "h2d", "forward", "backward"
ALLREDUCE, OPTIMIZER, CHECKPOINT, EVAL, OTHER = (
    *("allreduce", "optimizer", "checkpoint"),
    *("eval", "other"),
)
# a call of the compiled training function, whose parts nobody told apart
COMPUTE_PHASE = "compute"
PHASES = (
    *(INPUT, H2D, FORWARD, BACKWARD, ALLREDUCE, OPTIMIZER, CHECKPOINT, EVAL),
    *(COMPUTE_PHASE, OTHER),
)

# what a replica does in a phase, for spans that come without device activity of their own
PHASE_ACTIVITY = {
    INPUT: INPUT_ACTIVITY,
    H2D: COPY,
    FORWARD: COMPUTE,
    BACKWARD: COMPUTE,
    OPTIMIZER: COMPUTE,
    COMPUTE_PHASE: COMPUTE,
    ALLREDUCE: COLLECTIVE_ACTIVITY,
}

# op: which collective; "sendrecv" is NCCL's point-to-point kernel
OPS = (
    *("allreduce", "allgather", "reducescatter", "broadcast", "alltoall"),
    *("reduce", "gather", "scatter", "barrier", "sendrecv"),
)

CATEGORY = "category"


@dataclass(frozen=True)
class Column:
    """One column. ``dtype`` is pandas' name; ``values`` are the allowed ones, () means any text."""

    name: str
    dtype: str
    unit: str
    meaning: str
    values: tuple[str, ...] = ()
    nullable: bool = True

    @property
    def arrow_type(self) -> pa.DataType:
        """The type in the Parquet store."""
        return _ARROW_TYPES[self.dtype]


_ARROW_TYPES = {
    "int64": pa.int64(),
    "Int64": pa.int64(),
    "Int32": pa.int32(),
    "Int16": pa.int16(),
    "float64": pa.float64(),
    CATEGORY: pa.dictionary(pa.int32(), pa.string()),
}

SPAN_COLUMNS = (
    Column(
        START_NS,
        "int64",
        "ns",
        "on the node clock before alignment, since t0 after",
        nullable=False,
    ),
    Column(END_NS, "int64", "ns", "end, not before the start", nullable=False),
    Column(KIND, CATEGORY, "", "what the span is", values=KINDS, nullable=False),
    Column(ACTIVITY, CATEGORY, "", "what the replica was doing", values=ACTIVITIES),
    Column(NAME, CATEGORY, "", "as the source gave it", nullable=False),
    Column(LANE, CATEGORY, "", "CUDA stream or thread"),
    Column(REPLICA, "Int16", "", "what trains, within the rank; null on host spans"),
    Column(DEVICE, "Int16", "", "physical GPU of the node, never the visible index"),
    Column(STEP, "Int32", "", "optimizer update the span belongs to"),
    Column(
        PHASE, CATEGORY, "", "part of the step; of phases, ops, and GPU work of ops", values=PHASES
    ),
    Column(BYTES, "Int64", "bytes", "payload"),
    Column(OP, CATEGORY, "", "which collective", values=OPS),
    Column(COMM, CATEGORY, "", "communicator"),
    Column(SEQ, "Int64", "", "sequence number within the communicator"),
    Column(CORRELATION, "Int64", "", "joins a host call with its device activity"),
    Column(SOURCE, CATEGORY, "", "reader that produced the row", nullable=False),
)

COUNTER_COLUMNS = (
    Column(TIME_NS, "int64", "ns", "moment of the sample; same clock as the spans", nullable=False),
    Column(NAME, CATEGORY, "", "what was sampled, with its unit as suffix", nullable=False),
    Column(DEVICE, "Int16", "", "physical GPU of the node"),
    Column(VALUE, "float64", "", "the sample", nullable=False),
    Column(SOURCE, CATEGORY, "", "reader that produced the row", nullable=False),
)

NO_BRACKET = -1  # seq of an anchor whose two clocks were read once, one after the other
ANCHOR_COLUMNS = (
    Column(SEQ, "int64", "", "number of the beacon; NO_BRACKET: not a beacon", nullable=False),
    Column(BEFORE_NS, "int64", "ns", "CLOCK_MONOTONIC just before", nullable=False),
    Column(AFTER_NS, "int64", "ns", "CLOCK_MONOTONIC just after", nullable=False),
    Column(REALTIME_NS, "int64", "ns", "CLOCK_REALTIME in between", nullable=False),
)

EXCHANGE_COLUMNS = (
    Column(BURST, "int64", "", "number of the burst it belongs to", nullable=False),
    Column(SENT_NS, "int64", "ns", "ping sent, CLOCK_MONOTONIC of this node", nullable=False),
    Column(ARRIVED_NS, "int64", "ns", "it arrived, that of the reference", nullable=False),
    Column(ANSWERED_NS, "int64", "ns", "the answer left, that of the reference", nullable=False),
    Column(RECEIVED_NS, "int64", "ns", "it was here, that of this node", nullable=False),
)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """The Parquet schema of a table with these columns."""
    return pa.schema([pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in columns])
