"""Opens an XPlane file of tf.profiler and gives its events as arrays. Does not know what they mean.

Times are ns since the start of the profile, or since the epoch where the file says so itself
(``Plane.events``); those of old files have an origin that nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcprof.errors import InputError
from hpcprof.readers.xplane_schema import space_class

Ints = np.ndarray[Any, np.dtype[np.int64]]

_PS_PER_NS = 1_000
_NO_NAME = "event without a name"
_TASK_PLANE = "Task Environment"
_START_STAT = "profile_start_time"


class Events(NamedTuple):
    """Events of a plane, sorted by line, then start, the longer one first.

    ``line`` and ``name`` are indices into the plane's ``lines`` and ``names``; times are in ns.
    """

    line: Ints
    name: Ints
    start_ns: Ints
    end_ns: Ints


class Plane:
    """One plane of a file: the threads of a host, or the streams of a device.

    ``lines`` and ``names`` are texts; ``stats`` are the plane's own statistics.
    """

    def __init__(self, message: Any) -> None:
        self.name = str(message.name)
        self.lines = _distinct(
            [line.display_name or line.name or str(line.id) for line in message.lines]
        )
        self._stat_names = {entry.key: _text(entry.value.name) for entry in message.stat_metadata}
        codes = {entry.key: code for code, entry in enumerate(message.event_metadata)}
        texts = [_text(entry.value.name) for entry in message.event_metadata]
        self.names = [*(text or _NO_NAME for text in texts), _NO_NAME]
        self.stats = self._values(message.stats)
        self._raw: list[Any] = [event for line in message.lines for event in line.events]
        self.events, self._order = self._sorted(message, codes)

    def _sorted(self, message: Any, codes: dict[int, int]) -> tuple[Events, Ints]:
        counts = [len(line.events) for line in message.lines]
        line = np.repeat(np.arange(len(counts)), counts)
        origin = _ints([line.timestamp_ns for line in message.lines])[line]
        unknown = len(self.names) - 1
        name = _ints([codes.get(event.metadata_id, unknown) for event in self._raw])
        offset = _ints([event.offset_ps for event in self._raw])
        length = np.maximum(_ints([event.duration_ps for event in self._raw]), 0)
        start = origin + offset // _PS_PER_NS
        end = origin + (offset + length) // _PS_PER_NS
        order = np.lexsort((-end, start, line))
        return Events(line[order], name[order], start[order], end[order]), order

    def codes(self, wanted: Iterable[str]) -> list[int]:
        """The codes of these names; those that the plane does not have are left out."""
        texts = frozenset(wanted)
        return [code for code, name in enumerate(self.names) if name in texts]

    def named(self, *wanted: str) -> Ints:
        """Positions in ``events`` of the events with one of these names."""
        return np.flatnonzero(np.isin(self.events.name, self.codes(wanted)))

    def stats_of(self, position: int) -> dict[str, Any]:
        """The statistics of one event by name: numbers and texts."""
        return self._values(self._raw[self._order[position]].stats)

    def int_stat(self, positions: Ints, name: str, missing: int = 0) -> Ints:
        """One integer statistic of many events; ``missing`` where an event does not have it."""
        ids = {key for key, text in self._stat_names.items() if text == name}
        values = np.full(len(positions), missing, dtype=np.int64)
        for row, position in enumerate(self._order[positions].tolist()):
            for stat in self._raw[position].stats:
                if stat.metadata_id in ids:
                    number = stat.int64_value or stat.uint64_value
                    values[row] = number - 2**64 if number >= 2**63 else number
                    break
        return values

    def text_stat(self, positions: Ints, *names: str) -> list[str]:
        """The first of these texts that an event has as a statistic; "" where it has none."""
        ids = {key: names.index(text) for key, text in self._stat_names.items() if text in names}
        texts = []
        for position in self._order[positions].tolist():
            found = [stat for stat in self._raw[position].stats if stat.metadata_id in ids]
            found.sort(key=lambda stat: ids[stat.metadata_id])
            values = self._values(found[:1]).values()
            texts.append(str(next(iter(values), "")))
        return texts

    def _values(self, stats: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for stat in stats:
            kind = stat.WhichOneof("value")
            if kind is None:
                continue
            value = getattr(stat, kind)
            if kind == "ref_value":
                value = self._stat_names.get(value, "")
            elif isinstance(value, bytes):
                value = _text(value)
            values[self._stat_names.get(stat.metadata_id, "")] = value
        return values


@dataclass(frozen=True)
class Space:
    """One file. ``start_ns`` is the CLOCK_REALTIME at time 0 of the events; None: not known.

    ``errors`` and ``warnings`` are those that TensorFlow wrote into the file.
    """

    planes: tuple[Plane, ...]
    start_ns: int | None
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def read_space(path: Path, rank: int) -> Space:
    """Read a whole file.

    Raises InputError naming rank and file when it cannot be read or is no XPlane file, and
    EnvironmentLacksError without protobuf.
    """
    message = space_class()()
    from google.protobuf.message import (
        DecodeError,
    )  # after space_class, which says if it is missing

    try:
        message.ParseFromString(path.read_bytes())
    except OSError as error:
        raise InputError(f"rank {rank}: {path} cannot be read ({error.strerror})") from None
    except DecodeError as error:
        raise InputError(
            f"rank {rank}: {path} is no whole XPlane file ({error}). Was it cut, or copied as text?"
        ) from None
    if not message.planes:
        raise InputError(f"rank {rank}: {path} holds no plane: it is no XPlane file, or it is cut")
    planes = tuple(Plane(plane) for plane in message.planes)
    starts = [plane.stats.get(_START_STAT) for plane in planes if plane.name == _TASK_PLANE]
    return Space(
        planes=planes,
        start_ns=int(starts[0]) if starts and starts[0] else None,
        errors=tuple(message.errors),
        warnings=tuple(message.warnings),
    )


def _distinct(names: list[str]) -> list[str]:
    """The names, numbered where one comes again: threads of Python are all called python."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return numbered


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
