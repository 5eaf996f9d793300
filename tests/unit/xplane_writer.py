"""Writes XPlane files as tf.profiler does, from a few calls. For tests of the readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcprof.artifacts import tf_profile_format as own
from hpcprof.readers.xplane_schema import space_class


class PlaneBuilder:
    """One plane; times are given in ns since the start of the profile."""

    def __init__(self, message: Any, name: str) -> None:
        self._plane = message
        self._plane.name = name
        self._ids: dict[str, int] = {}
        self._stat_ids: dict[str, int] = {}
        self._lines: dict[str, Any] = {}

    def add(
        self, line: str, start: int, end: int, name: str, /, **stats: int | str
    ) -> PlaneBuilder:
        if line not in self._lines:
            self._lines[line] = self._plane.lines.add(id=len(self._lines) - 3, name=line)
        event = self._lines[line].events.add(
            metadata_id=self._id(name), offset_ps=start * 1000, duration_ps=(end - start) * 1000
        )
        self._add_stats(event, stats)
        return self

    def run(self, line: str, start: int, end: int, number: int) -> PlaneBuilder:
        """A function's operations run on a thread, in the run with this id."""
        return self.add(line, start, end, "ExecutorState::Process", id=number)

    def sync(self, time: int, seq: int, monotonic: int, *, width: int = 400) -> PlaneBuilder:
        """Two marks around a moment; CLOCK_MONOTONIC was ``monotonic`` at ``time``."""
        first = {own.SYNC_NUMBER: seq, own.SYNC_MONOTONIC: monotonic - width, own.SYNC_WALL: 7}
        second = {own.SYNC_NUMBER: seq, own.SYNC_MONOTONIC: monotonic + width}
        self.add("python", time, time, own.SYNC, **first)
        return self.add("python", time + 2 * width, time + 2 * width, own.SYNC, **second)

    def step(self, start: int, end: int, number: int) -> PlaneBuilder:
        stats = {own.STEP_NUMBER: number, own.OWN_STEP: 1}
        return self.add("python", start, end, own.STEP, **stats)

    def stat(self, **stats: int | str) -> PlaneBuilder:
        """Statistics of the plane itself."""
        self._add_stats(self._plane, stats)
        return self

    def _add_stats(self, holder: Any, stats: dict[str, int | str]) -> None:
        for name, value in stats.items():
            stat = holder.stats.add(metadata_id=self._stat_id(name))
            if isinstance(value, str):
                stat.ref_value = self._stat_id(value)
            else:
                stat.int64_value = value

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = len(self._ids) + 5
            entry = self._plane.event_metadata.add(key=self._ids[name])
            entry.value.id, entry.value.name = self._ids[name], name.encode()
        return self._ids[name]

    def _stat_id(self, name: str) -> int:
        if name not in self._stat_ids:
            self._stat_ids[name] = len(self._stat_ids) + 1
            entry = self._plane.stat_metadata.add(key=self._stat_ids[name])
            entry.value.id, entry.value.name = self._stat_ids[name], name.encode()
        return self._stat_ids[name]


class XPlaneFile:
    """One file of tf.profiler in a log folder."""

    def __init__(self) -> None:
        self.message = space_class()()

    def plane(self, name: str = "/host:CPU") -> PlaneBuilder:
        return PlaneBuilder(self.message.planes.add(), name)

    def write(self, folder: Path, run: str = "2026_01_02_03_04_05") -> Path:
        path = folder / "plugins/profile" / run / "node17.xplane.pb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.message.SerializeToString())
        return path
