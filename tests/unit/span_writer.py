"""Writes ``spans.bin`` as annotate does, from a few calls. For tests of the readers."""

from __future__ import annotations

from hpcprof.artifacts import span_format as fmt

OPENED_REALTIME_NS = 1_764_547_200_000_000_123
OPENED_MONOTONIC_NS = 5_000_000_000


class SpanFile:
    """Bytes of a span file in ``content``; times are given in ns of CLOCK_MONOTONIC."""

    def __init__(self, rank: int = 3, pid: int = 4711, version: int = fmt.VERSION) -> None:
        self.content = fmt.HEADER.pack(
            fmt.MAGIC, version, rank, pid, OPENED_REALTIME_NS, OPENED_MONOTONIC_NS
        )
        self._ids: dict[str, int] = {}

    def add(
        self,
        start: int,
        end: int,
        name: str,
        step: int = fmt.NO_STEP,
        kind: int = fmt.KIND_HOST,
        value: int = 0,
        thread: int = 77,
    ) -> SpanFile:
        if name not in self._ids:
            self._ids[name] = len(self._ids) + 1
            self.content += fmt.name_blocks(self._ids[name], name)
        self.content += fmt.RECORD.pack(start, end, self._ids[name], step, thread, kind, value)
        return self

    def step(self, start: int, end: int, number: int) -> SpanFile:
        return self.add(start, end, "step", number, fmt.KIND_STEP)

    def phase(self, start: int, end: int, name: str, step: int, nbytes: int = 0) -> SpanFile:
        return self.add(start, end, name, step, fmt.KIND_PHASE, nbytes)

    def busy(self, start: int, end: int, why: str, step: int = fmt.NO_STEP) -> SpanFile:
        return self.add(start, end, why, step, fmt.KIND_BUSY)

    def beacon(self, seq: int, before: int, after: int, realtime: int) -> SpanFile:
        return self.add(before, after, "beacon", seq, fmt.KIND_BEACON, realtime)
