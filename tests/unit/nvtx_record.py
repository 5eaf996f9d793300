"""What is in an ``nvtx.bin``, read by its definition and not as collect reads it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hpcprof.artifacts import nvtx_format, span_format


class Seen(NamedTuple):
    """One range or mark of a file."""

    domain: str | None
    name: str
    kind: int
    value: int
    thread: int
    start_ns: int
    end_ns: int


def read(path: Path) -> list[Seen]:
    """All ranges of a file, which must declare each name before it uses it, and hold it once."""
    data = path.read_bytes()
    names: dict[int, str] = {}
    seen = []
    at = span_format.HEADER.size
    while at < len(data):
        start, end, name, step, thread, flags, value = span_format.RECORD.unpack_from(data, at)
        at += span_format.BLOCK_BYTES
        if flags == span_format.KIND_NAME:
            assert name not in names
            names[name] = data[at : at + value].decode("utf-8")
            at += span_format.text_block_count(value) * span_format.BLOCK_BYTES
            continue
        domain = None if step == nvtx_format.NO_DOMAIN else names[step]
        seen.append(Seen(domain, names[name], flags, value, thread, start, end))
    return seen
