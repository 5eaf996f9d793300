"""Reads what the node agent left in ``nodes/<host>/``: clock.jsonl, links.jsonl and samples.jsonl.

Format: ``artifacts.node_records``. Does not fit clocks and does not judge numbers.

A job without an agent is normal, so a file that is not there gives an empty table and a sentence in
the warnings, never an error. Lines that are damaged or cut off are left out, counted and told.
InputError is raised where going on would be wrong: a file of another schema, a file that another
node wrote, a file that is there and may not be read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.artifacts import node_records
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.trace.columns import (
    AFTER_NS,
    BEFORE_NS,
    BYTES,
    EXCHANGE_COLUMNS,
    NAME,
    REALTIME_NS,
    SEQ,
    START_NS,
    TIME_NS,
    VALUE,
)
from hpcprof.trace.frame import anchors_frame, coded, nullable_int

NODE, PEER, TRANSPORT, RANK = "node", "peer", "transport", "rank"
DURATION_NS, ROUND_TRIP_NS = "duration_ns", "round_trip_ns"
WARNINGS = "warnings"  # in the attrs of links and samples: tuple of sentences

_EXCHANGE_NAMES = tuple(column.name for column in EXCHANGE_COLUMNS)
_WALL_COLUMNS = (BEFORE_NS, REALTIME_NS, AFTER_NS)
_LINK_COLUMNS = (BYTES, START_NS, DURATION_NS, ROUND_TRIP_NS)
_RANK_MAX = int(np.iinfo(np.int16).max)
_BURST_MAX = int(np.iinfo(np.int32).max)
_INT64_MAX = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class ClockFile:
    """Content of one clock.jsonl.

    ``exchanges``: int64 columns burst, sent_ns, arrived_ns, answered_ns, received_ns; sent and
    received on this node's CLOCK_MONOTONIC, arrived and answered on that of ``reference``. They
    make sense one by one (a ping is received after it was sent, and so on). ``burst`` never repeats
    when the agent was started again. ``walls``: the wall clock, as anchors. ``reference`` and
    ``transport`` are None when no agent record was found; there are then no exchanges. ``ended``
    says that the agent ended by itself.
    """

    node: str
    reference: str | None
    transport: str | None
    exchanges: pd.DataFrame
    walls: pd.DataFrame
    notes: tuple[str, ...]
    ended: bool
    warnings: tuple[str, ...]


def read_exchanges(paths: ArtifactPaths, node: str) -> ClockFile:
    """The clock readings of one node. Raises InputError, see the module."""
    lines = _Lines(paths.node_clock(node), node)
    clock = _ClockRecords()
    for record in lines:
        clock.add(record, lines)
    exchanges = np.array(clock.exchanges, dtype=np.int64).reshape(-1, len(_EXCHANGE_NAMES))
    walls = np.array(clock.walls, dtype=np.int64).reshape(-1, len(_WALL_COLUMNS))
    return ClockFile(
        node=node,
        reference=clock.reference,
        transport=clock.transport,
        exchanges=pd.DataFrame(exchanges, columns=list(_EXCHANGE_NAMES)),
        walls=anchors_frame(
            {
                SEQ: np.arange(len(walls)),
                **{name: walls[:, at] for at, name in enumerate(_WALL_COLUMNS)},
            }
        ),
        notes=tuple(clock.notes),
        ended=clock.ended,
        warnings=(*lines.warnings(), *clock.warnings(node)),
    )


def read_links(paths: ArtifactPaths, node: str) -> pd.DataFrame:
    """Messages from this node, in the order sent: columns node, peer, bytes, start_ns, duration_ns,
    round_trip_ns, transport. Warnings are in ``attrs["warnings"]``. Raises InputError, see above.

    A message with a negative size or time is left out and counted as damaged.
    """
    lines = _Lines(paths.node_links(node), node)
    numbers: list[list[int]] = []
    peers: list[str] = []
    transports: list[str] = []
    for record in lines:
        if record.get("kind") != node_records.LINK:
            continue
        row = _integers(record, _LINK_COLUMNS)
        peer, transport = record.get(PEER), record.get(TRANSPORT)
        named = isinstance(peer, str) and isinstance(transport, str)
        if not row or not named or min(row) < 0:
            lines.damaged += 1
            continue
        numbers.append(row)
        peers.append(str(peer))
        transports.append(str(transport))
    table = np.array(numbers, dtype=np.int64).reshape(-1, len(_LINK_COLUMNS))
    columns: dict[str, Any] = {
        NODE: pd.Series([node] * len(peers), dtype=object),
        PEER: pd.Series(peers, dtype=object),
        **{name: table[:, at] for at, name in enumerate(_LINK_COLUMNS)},
        TRANSPORT: pd.Series(transports, dtype=object),
    }
    return _with_warnings(pd.DataFrame(columns), lines)


def read_samples(paths: ArtifactPaths, node: str) -> pd.DataFrame:
    """Every counter of every sample: columns time_ns (CLOCK_MONOTONIC of the node), rank (null for
    the node itself), name, value. Warnings are in ``attrs["warnings"]``.

    Cumulative counters are as the kernel gave them. A counter that is no finite number is left out
    and counted. Raises InputError, see the module.
    """
    lines = _Lines(paths.node_samples(node), node)
    rows = _SampleRows()
    for record in lines:
        if record.get("kind") != node_records.SAMPLE:
            continue
        time = _integers(record, ("monotonic_ns",))
        counters, ranks = record.get("counters", {}), record.get("ranks", {})
        if not time or not isinstance(counters, dict) or not isinstance(ranks, dict):
            lines.damaged += 1
            continue
        lines.odd_values += rows.add(time[0], -1, counters)
        for rank, values in ranks.items():
            if rank.isdecimal() and len(rank) <= 5 and int(rank) <= _RANK_MAX:
                lines.odd_values += rows.add(time[0], int(rank), values)
            else:
                lines.odd_values += 1
    return _with_warnings(rows.frame(), lines)


class _Lines:
    """The records of one file. What was left out is counted while they are taken."""

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._missing = False
        self._torn = False
        self.damaged = 0
        self.odd_values = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self._path, "rb") as stream:
                for line in stream:
                    record = _record(line)
                    if record is not None:
                        self._check(record)
                        yield record
                    elif not line.endswith(b"\n"):
                        self._torn = True  # no part of a JSON object is one: a whole one is kept
                    elif line.strip():
                        self.damaged += 1
        except FileNotFoundError:
            self._missing = True
        except OSError as error:
            raise InputError(
                f"node {self._node}: {self._path} cannot be read ({error.strerror}). "
                "Ask the owner of the run for access, or collect without it by moving it away."
            ) from None

    def _check(self, record: Mapping[str, Any]) -> None:
        """Raises InputError when the file is not one that this reader and this node mean."""
        if record.get("kind") != node_records.AGENT:
            return
        if record.get("schema") != node_records.SCHEMA:
            raise InputError(
                f"node {self._node}: {self._path} has schema {record.get('schema')}, this hpcprof "
                f"reads {node_records.SCHEMA}. Run collect with the hpcprof version of the job."
            )
        if record.get(NODE) != self._node:
            raise InputError(
                f"node {self._node}: {self._path} was written by node {record.get(NODE)}. "
                "Were folders copied or renamed? Put the file back, or move it away."
            )

    def warnings(self) -> tuple[str, ...]:
        """What was left out, in words; empty when nothing was."""
        name = f"node {self._node}: {self._path.name}"
        texts = []
        if self._missing:
            texts.append(f"{name} is missing (no node agent ran there, or it could not write)")
        if self._torn:
            texts.append(f"{name}: the last line was cut off and left out (killed while writing)")
        if self.damaged:
            texts.append(f"{name}: {self.damaged} lines are damaged and were left out")
        if self.odd_values:
            texts.append(f"{name}: {self.odd_values} values are no numbers and were left out")
        return tuple(texts)


@dataclass
class _ClockRecords:
    """Collects the records of a clock.jsonl, which may hold several starts of the agent."""

    reference: str | None = None
    transport: str | None = None
    exchanges: list[list[int]] = field(default_factory=list)
    walls: list[list[int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended: bool = False
    senseless: int = 0
    unknown: int = 0
    _pinged: str | None = None  # by the agent that wrote the records that come now
    _first_burst: int = 0

    def add(self, record: Mapping[str, Any], lines: _Lines) -> None:
        kind = record.get("kind")
        if kind == node_records.AGENT:
            self._start(record)
        elif kind == node_records.EXCHANGE:
            self._add_exchange(record, lines)
        elif kind == node_records.WALL:
            row = _integers(record, _WALL_COLUMNS)
            if row and row[0] <= row[2]:
                self.walls.append(row)
            else:
                lines.damaged += 1
        elif kind == node_records.NOTE:
            self.notes.append(str(record.get("text", "")))
        elif kind == node_records.END:
            self.ended = True

    def warnings(self, node: str) -> list[str]:
        texts = []
        if self.senseless:
            texts.append(
                f"node {node}: {self.senseless} pings make no sense (answered before they were "
                "sent) and were left out"
            )
        if self.unknown:
            texts.append(
                f"node {node}: {self.unknown} pings were left out: it is not known which node "
                "answered them, or it was another than at first"
            )
        return texts

    def _start(self, record: Mapping[str, Any]) -> None:
        reference, transport = record.get("reference"), record.get(TRANSPORT)
        self._pinged = reference if isinstance(reference, str) else None
        self.ended = False
        self._first_burst = 1 + max((row[0] for row in self.exchanges), default=-1)
        if self.reference is None:
            self.reference = self._pinged
            self.transport = transport if isinstance(transport, str) else None

    def _add_exchange(self, record: Mapping[str, Any], lines: _Lines) -> None:
        row = _integers(record, _EXCHANGE_NAMES)
        if not row:
            lines.damaged += 1
        elif self._pinged is None or self._pinged != self.reference:
            self.unknown += 1  # one offset cannot be taken from the clocks of two nodes
        elif not _makes_sense(row):
            self.senseless += 1
        else:
            self.exchanges.append([row[0] + self._first_burst, *row[1:]])


class _SampleRows:
    """Long-form rows, kept by column; texts as codes."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._ranks: list[int] = []
        self._codes: list[int] = []
        self._values: list[float] = []
        self._names: dict[str, int] = {}

    def add(self, time_ns: int, rank: int, counters: Any) -> int:
        """Add the counters; returns how many were no finite numbers. ``rank`` -1: the node."""
        if not isinstance(counters, dict):
            return 1
        odd = 0
        for name, value in counters.items():
            if not _is_number(value):
                odd += 1
                continue
            self._times.append(time_ns)
            self._ranks.append(rank)
            self._codes.append(self._names.setdefault(name, len(self._names)))
            self._values.append(float(value))
        return odd

    def frame(self) -> pd.DataFrame:
        ranks = np.array(self._ranks, dtype=np.int64)
        codes = np.array(self._codes, dtype=np.int64)
        # JSON may hold halves of characters, which no table takes
        names = [name.encode(errors="replace").decode() for name in self._names]
        columns = {
            TIME_NS: np.array(self._times, dtype=np.int64),
            RANK: nullable_int(ranks, ranks < 0, "Int16"),
            NAME: coded(codes, names),
            VALUE: np.array(self._values, dtype=np.float64),
        }
        frame: pd.DataFrame = pd.DataFrame(columns)
        return frame


def _record(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None when it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # the latter from a damaged line full of brackets
        return None
    return value if isinstance(value, dict) else None


def _integers(record: Mapping[str, Any], names: tuple[str, ...]) -> list[int]:
    """The fields as int64 numbers; [] when one is missing or is none."""
    values: list[Any] = [record.get(name) for name in names]
    return values if all(_is_int64(value) for value in values) else []


def _is_int64(value: Any) -> bool:
    return type(value) is int and -_INT64_MAX <= value <= _INT64_MAX


def _is_number(value: Any) -> bool:
    return _is_int64(value) or (isinstance(value, float) and math.isfinite(value))


def _makes_sense(row: list[int]) -> bool:
    """Whether nothing ends before it begins, and the way there and back takes no negative time."""
    burst, sent, arrived, answered, received = row
    there, here = answered - arrived, received - sent
    return 0 <= burst <= _BURST_MAX and here >= 0 and there >= 0 and here - there >= 0


def _with_warnings(frame: pd.DataFrame, lines: _Lines) -> pd.DataFrame:
    frame.attrs[WARNINGS] = lines.warnings()
    return frame
