"""Reads Horovod's own timeline (HOROVOD_TIMELINE), which the coordinator, rank 0, writes.

A Chrome trace in which each tensor is a "process": ``NEGOTIATE_<OP>`` with one tick per rank that
is ready, then ``<OP>`` with its pieces. Facts that shape the reader (horovod/common/timeline.cc):
events stand behind each other on one line, names of tensors are written unescaped, and ranks tick
only while the response cache does not know the tensor, so usually in the first step only. Ticks
are on rank 0's clock; rank 0 notes itself last, so its own tick says nothing about lateness.

Does not judge, and does not assign steps. What it gives is rank 0's view of collectives that other
sources may hold as well: do not mix the two in one analysis, every collective would count twice.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from hpcprof.errors import InputError
from hpcprof.trace import columns as c
from hpcprof.trace.check import check_spans
from hpcprof.trace.frame import coded, nullable_int, spans_frame

SOURCE = "horovod-timeline"
NEGOTIATE = "negotiate"
_NULL = -(2**63)
_CHUNK_BYTES = 256 * 1024
_LONGEST_EVENT = 64 * 1024  # characters; a longer one is damage, else it would swallow the file
_BETWEEN_RE = re.compile(r"[\s,\[\]\0]*")
_NEXT_EVENT_RE = re.compile(r'(?<!:)(?<!: )\{"(?:ph|name)"')  # not the args of one
_LARGEST_US = 9_000_000_000_000_000  # in ns it fits int64
_FAR_OFF_NS = 3600 * 1_000_000_000
_DTYPE_BYTES = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64"), 8),
}


@dataclass(frozen=True)
class HorovodTimeline:
    """Content of one timeline. Times are ns since the timeline's start.

    ``start_time_since_epoch`` is that start in ns of CLOCK_REALTIME; None when the file does not
    say it, and then the times count from an arbitrary moment. ``tensors``: their names, sorted.
    ``operations``: one row per operation with tensor, op (null for a join), bytes,
    negotiate_start_ns, negotiate_end_ns, start_ns, end_ns; null is what was not recorded.
    ``pieces`` of the operations: operation (row number), name (lower-case), start_ns, end_ns.
    ``ticks``: operation, rank, ready_ns. ``with_ticks`` operations of ``len(operations)`` have any.
    """

    start_time_since_epoch: int | None
    tensors: tuple[str, ...]
    operations: pd.DataFrame
    pieces: pd.DataFrame
    ticks: pd.DataFrame
    with_ticks: int
    warnings: tuple[str, ...]

    def ready_ns(self, operation: int) -> dict[int, int]:
        """Rank → when the coordinator heard that it is ready; {} when no rank ticked."""
        rows = self.ticks[self.ticks["operation"] == operation].drop_duplicates("rank")
        ranks, moments = rows["rank"].tolist(), rows["ready_ns"].tolist()
        return dict(zip(ranks, moments, strict=True))


def read_timeline(path: Path) -> HorovodTimeline:
    """Read a timeline, however it ends; what cannot be read is counted in ``warnings``.

    Memory grows with the number of operations, not with the length of the file. Raises InputError
    when it cannot be opened.
    """
    builder = _Builder()
    try:
        with path.open("rb") as stream:
            for event in _events(stream, builder.damage):
                builder.take(event)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    return builder.timeline()


def to_spans(timeline: HorovodTimeline, anchors: pd.DataFrame) -> pd.DataFrame:
    """Spans on CLOCK_MONOTONIC of rank 0's node; ``anchors`` are those of rank 0.

    Operations that ended are collectives, named by their tensor; negotiations and pieces are host
    spans. Raises InputError when the timeline cannot be placed: no start time, no anchor, or the
    result lies more than an hour outside the anchors (another job's, or an arbitrary clock).
    """
    shift = _shift(timeline, anchors)
    whole = timeline.operations.dropna(subset=[c.START_NS, c.END_NS])
    talks = timeline.operations.dropna(subset=["negotiate_start_ns", "negotiate_end_ns"])
    tensors, pieces = whole["tensor"].tolist(), timeline.pieces[c.NAME].tolist()
    talk_names = [f"{NEGOTIATE}_{op}" for op in talks[c.OP].astype(object).fillna("join")]
    name_codes, names = pd.factorize(np.array([*tensors, *talk_names, *pieces], dtype=object))
    ops = whole[c.OP].astype(object).where(whole[c.OP].notna(), None).tolist()
    rest = len(talks) + len(pieces)
    is_collective = np.array([op is not None for op in ops] + [False] * rest, dtype=bool)
    payload = whole[c.BYTES].fillna(0).astype("int64").to_numpy()
    payload = np.concatenate([payload, np.zeros(rest, np.int64)])
    spans = spans_frame(
        {
            c.START_NS: shift + _joined(whole, talks, timeline.pieces, "start_ns"),
            c.END_NS: shift + _joined(whole, talks, timeline.pieces, "end_ns"),
            c.KIND: coded((~is_collective).astype(np.int64), [c.COLLECTIVE, c.HOST]),
            c.ACTIVITY: coded((~is_collective).astype(np.int64), [c.COLLECTIVE_ACTIVITY, None]),
            c.NAME: coded(name_codes, list(names)),
            c.LANE: "horovod",
            c.BYTES: nullable_int(payload, payload == 0, "Int64"),
            c.OP: [*ops, *[None] * rest],
            c.SOURCE: SOURCE,
        }
    )
    return check_spans(spans)


def _joined(whole: pd.DataFrame, talks: pd.DataFrame, pieces: pd.DataFrame, name: str) -> Any:
    parts = (whole[name], talks[f"{NEGOTIATE}_{name}"], pieces[name])
    return np.concatenate([part.to_numpy(dtype=np.int64) for part in parts])


def _shift(timeline: HorovodTimeline, anchors: pd.DataFrame) -> int:
    """What to add to the timeline's times, ns."""
    epoch = timeline.start_time_since_epoch
    if epoch is None:
        raise InputError(
            "the Horovod timeline does not say when it began, so it cannot be placed beside the "
            "other recordings; an older Horovod does not write it"
        )
    if not len(anchors):
        raise InputError("rank 0 left no pair of clock readings: its timeline cannot be placed")
    before, after = anchors[c.BEFORE_NS], anchors[c.AFTER_NS]
    offsets = np.sort((anchors[c.REALTIME_NS] - (before + (after - before) // 2)).to_numpy())
    shift = epoch - int(offsets[len(offsets) // 2])  # no mean: float64 cannot hold epoch ns
    starts = timeline.operations[c.START_NS].dropna()
    if len(starts):
        first, last = shift + int(starts.min()), shift + int(starts.max())
        if last < before.min() - _FAR_OFF_NS or first > after.max() + _FAR_OFF_NS:
            raise InputError("the Horovod timeline is not of the time at which the job ran")
    return shift


@dataclass
class _Damage:
    broken: int = 0
    cut: bool = False


def _events(stream: BinaryIO, damage: _Damage) -> Iterator[dict[str, Any]]:
    """The objects of the array one by one, whatever stands between and around them."""
    decoder = json.JSONDecoder(strict=False)  # names may hold raw newlines and NULs
    to_text = codecs.getincrementaldecoder("utf-8")("replace")
    text, at, ended = "", 0, False
    while True:
        between = _BETWEEN_RE.match(text, at)
        at = between.end() if between else at
        try:
            event, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            if not ended and len(text) - at < _LONGEST_EVENT:
                chunk = stream.read(_CHUNK_BYTES)
                ended = not chunk
                text, at = text[at:] + to_text.decode(chunk, final=ended), 0
                continue
            if at >= len(text):
                return
            following = _NEXT_EVENT_RE.search(text, at + 1)
            if following is None and ended:
                damage.cut = True
                return
            damage.broken += 1
            at = following.start() if following else max(at + 1, len(text) - _LONGEST_EVENT // 2)
            continue
        if isinstance(event, dict):
            yield event
        else:
            damage.broken += 1


@dataclass
class _Tensor:
    """State of one tensor: its name, its current operation (-1: none) and what is open in it."""

    name: int
    operation: int = -1
    open: list[tuple[str, int]] = field(default_factory=list)

    @property
    def negotiates(self) -> bool:
        return bool(self.open) and self.open[0][0] == NEGOTIATE


class _Builder:
    """Collects the events of a timeline; columns of numbers, for timelines of gigabytes."""

    def __init__(self) -> None:
        self.damage = _Damage()
        self.stray = 0
        self.epoch_ns: int | None = None
        self.later_start_ns = 0  # of a second recording in the same file
        self.codes: dict[str, int] = {}
        self.tensors: dict[int, _Tensor] = {}
        names = ("tensor", "op", "bytes", "negotiate_start", "negotiate_end", "start", "end")
        self.operations = {name: array("q") for name in names}
        self.pieces = {name: array("q") for name in ("operation", "name", "start", "end")}
        self.ticks = {name: array("q") for name in ("operation", "rank", "ready")}

    def take(self, event: dict[str, Any]) -> None:
        kind, name, pid = event.get("ph"), event.get("name", ""), event.get("pid")
        if kind == "i":
            return  # CYCLE_START, when HOROVOD_TIMELINE_MARK_CYCLES is set
        args = event.get("args", {})
        if not isinstance(pid, int) or not isinstance(name, str) or not isinstance(args, dict):
            self.damage.broken += 1
            return
        if kind == "M":
            self._learn(pid, args)
            return
        ts = event.get("ts")
        if not isinstance(ts, (int, float)) or not -_LARGEST_US < ts < _LARGEST_US:
            self.damage.broken += 1
            return
        now = round(ts * 1000) + self.later_start_ns
        if kind == "B":
            self._begin(self._tensor(pid), name, now)
        elif kind == "E":
            self._end(self._tensor(pid), now, args)
        elif kind == "X" and name.isdecimal() and len(name) < 9:
            self._tick(self._tensor(pid), int(name), now)
        else:
            self.damage.broken += 1

    def _learn(self, pid: int, args: dict[str, Any]) -> None:
        started = args.get("start_time_since_epoch_in_micros")
        if isinstance(started, int) and 0 < started < _LARGEST_US:
            if self.epoch_ns is None:
                self.epoch_ns = started * 1000
            self.later_start_ns = started * 1000 - self.epoch_ns
            self.tensors.clear()
        elif isinstance(args.get("name"), str):
            self.tensors[pid] = _Tensor(self._code(args["name"]))

    def _code(self, text: str) -> int:
        return self.codes.setdefault(text, len(self.codes))

    def _tensor(self, pid: int) -> _Tensor:
        if pid not in self.tensors:  # its name was damaged, or is in an earlier part
            self.tensors[pid] = _Tensor(self._code(f"tensor {pid}"))
        return self.tensors[pid]

    def _begin(self, tensor: _Tensor, name: str, now: int) -> None:
        lowered = name.lower()
        if lowered.startswith(f"{NEGOTIATE}_"):
            tensor.open = [(NEGOTIATE, now)]
            self._add(tensor, lowered.removeprefix(f"{NEGOTIATE}_"))
            self.operations["negotiate_start"][tensor.operation] = now
            return
        if tensor.negotiates:  # the end of the negotiation was lost
            tensor.open = []
        if not tensor.open:
            if tensor.operation < 0 or self.operations["start"][tensor.operation] != _NULL:
                self._add(tensor, lowered)  # its negotiation was not recorded
            self.operations["start"][tensor.operation] = now
        tensor.open.append((lowered, now))

    def _add(self, tensor: _Tensor, op: str) -> None:
        tensor.operation = len(self.operations["op"])
        for column in self.operations.values():
            column.append(_NULL)
        self.operations["tensor"][-1] = tensor.name
        self.operations["op"][-1] = c.OPS.index(op) if op in c.OPS else -1

    def _end(self, tensor: _Tensor, now: int, args: dict[str, Any]) -> None:
        if not tensor.open:
            self.stray += 1
            return
        name, start = tensor.open.pop()
        if now < start:
            self.damage.broken += 1
        elif name == NEGOTIATE:
            self.operations["negotiate_end"][tensor.operation] = now
        elif not tensor.open:
            self.operations["end"][tensor.operation] = now
            self.operations["bytes"][tensor.operation] = _payload(args)
        else:
            row = (tensor.operation, self._code(name), start, now)
            for column, value in zip(self.pieces.values(), row, strict=True):
                column.append(value)

    def _tick(self, tensor: _Tensor, rank: int, now: int) -> None:
        if not tensor.negotiates:
            self.stray += 1
            return
        row = (tensor.operation, rank, now)
        for column, value in zip(self.ticks.values(), row, strict=True):
            column.append(value)

    def timeline(self) -> HorovodTimeline:
        texts = list(self.codes)
        raw = {name: np.array(column, np.int64) for name, column in self.operations.items()}
        operations = {
            "tensor": coded(raw["tensor"], texts),
            c.OP: coded(raw["op"], c.OPS),
            c.BYTES: _nullable(raw["bytes"]),
            **{
                f"{name}_ns": _nullable(raw[name])
                for name in ("negotiate_start", "negotiate_end", "start", "end")
            },
        }
        pieces = {name: np.array(column, np.int64) for name, column in self.pieces.items()}
        ticks = {name: np.array(column, np.int64) for name, column in self.ticks.items()}
        observed = int(np.unique(ticks["operation"]).size)
        return HorovodTimeline(
            start_time_since_epoch=self.epoch_ns,
            tensors=tuple(sorted({texts[code] for code in raw["tensor"].tolist()})),
            operations=pd.DataFrame(operations),
            pieces=pd.DataFrame(
                {
                    "operation": pieces["operation"],
                    c.NAME: coded(pieces["name"], texts),
                    c.START_NS: pieces["start"],
                    c.END_NS: pieces["end"],
                }
            ),
            ticks=pd.DataFrame(ticks).rename(columns={"ready": "ready_ns"}),
            with_ticks=observed,
            warnings=tuple(self._warnings(observed, int((raw["end"] == _NULL).sum()))),
        )

    def _warnings(self, observed: int, unfinished: int) -> Iterator[str]:
        total = len(self.operations["op"])
        if not total:
            yield "the timeline holds no operation"
        if self.epoch_ns is None:
            yield "the timeline does not say when it began; its times cannot be placed"
        if self.damage.cut:
            yield "the last event was cut in the middle and left out (killed while writing)"
        if self.damage.broken:
            yield f"{self.damage.broken} events make no sense and were left out"
        if self.stray:
            yield (
                f"{self.stray} ends and ready ticks belong to nothing that was recorded before "
                "(a later part of a timeline, or a cut one)"
            )
        if unfinished:
            yield f"{unfinished} of {total} operations have no end"
        if observed < total:
            yield (
                f"which rank was ready when is known for {observed} of {total} operations: "
                "Horovod's response cache hides it (HOROVOD_CACHE_CAPACITY=0 shows it)"
            )


def _nullable(values: Any) -> Any:
    return nullable_int(values, values == _NULL, "Int64")


def _payload(args: dict[str, Any]) -> int:
    """Bytes from dtype and shape ("[64, 3]"; a scalar is "[]"), or null."""
    size = _DTYPE_BYTES.get(str(args.get("dtype")))
    shape = re.fullmatch(r"\[([0-9, ]*)\]", str(args.get("shape")))
    if size is None or shape is None:
        return _NULL
    total = size
    for length in shape.group(1).split(","):
        total *= int(length) if length.strip() else 1
    return total if total <= 2**62 else _NULL
