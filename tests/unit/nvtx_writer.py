"""Writes ``nvtx.bin`` as our recorder does, from a few calls. For tests of the readers."""

from __future__ import annotations

from hpcprof.artifacts import nvtx_format
from hpcprof.artifacts import span_format as fmt
from tests.unit.span_writer import OPENED_MONOTONIC_NS, OPENED_REALTIME_NS


class NvtxFile:
    """Bytes of an nvtx.bin in ``content``; times are given in ns of CLOCK_MONOTONIC."""

    def __init__(
        self, rank: int = 3, version: int = nvtx_format.VERSION, magic: bytes = nvtx_format.MAGIC
    ) -> None:
        opened = (OPENED_REALTIME_NS, OPENED_MONOTONIC_NS)
        self.content = fmt.HEADER.pack(magic, version, rank, 4711, *opened)
        self._ids: dict[str, int] = {}

    def add(
        self,
        start: int,
        end: int,
        text: str,
        domain: str | None,
        kind: int = nvtx_format.PUSH_POP,
        value: int = 0,
        thread: int = 77,
    ) -> NvtxFile:
        """One range; ``domain`` None is the default domain."""
        name = self._id(text)
        domain_id = nvtx_format.NO_DOMAIN if domain is None else self._id(domain)
        self.content += fmt.RECORD.pack(start, end, name, domain_id, thread, kind, value)
        return self

    def op(self, start: int, end: int, name: str, thread: int = 77) -> NvtxFile:
        """An operation of TensorFlow."""
        return self.add(start, end, name, nvtx_format.TENSORFLOW_DOMAIN, thread=thread)

    def allreduce(self, start: int, end: int, nbytes: int, thread: int = 99) -> NvtxFile:
        """An allreduce of Horovod."""
        kind = nvtx_format.START_END
        return self.add(
            start, end, "HorovodAllreduce", nvtx_format.HOROVOD_DOMAIN, kind, nbytes, thread
        )

    def _id(self, text: str) -> int:
        if text not in self._ids:
            self._ids[text] = len(self._ids) + 1
            self.content += fmt.name_blocks(self._ids[text], text)
        return self._ids[text]
