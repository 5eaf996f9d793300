"""Reads the blocks of which ``spans.bin`` and ``nvtx.bin`` are made: header, records, names.

Both have one form (``artifacts.span_format``) and differ in what a record means, which is not
known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcprof.artifacts import span_format as fmt
from hpcprof.errors import InputError
from hpcprof.trace.model import Moment

Records = np.ndarray[Any, np.dtype[Any]]
_RECORD_DTYPE = np.dtype(
    [
        *(("start", "<i8"), ("end", "<i8"), ("name", "<u4"), ("step", "<i4")),
        *(("thread", "<u4"), ("flags", "<u4"), ("value", "<i8")),
    ]
)
# a longer "name" is damage: believing its length would swallow the records behind it
_LONGEST_NAME_BYTES = 64 * 1024

if _RECORD_DTYPE.itemsize != fmt.BLOCK_BYTES:
    raise AssertionError("the numpy dtype must be the record of span_format")


class BlockFormat(NamedTuple):
    """Which of the two files; ``holds`` and ``are_lost`` complete what is said of a bad one."""

    magic: bytes
    version: int
    holds: str
    are_lost: str


@dataclass(frozen=True)
class Blocks:
    """Content of one file. Times are CLOCK_MONOTONIC ns of the node.

    ``records`` are all blocks that are not part of a name; ``names`` by id. ``opened`` is when the
    file was made. ``torn``: the last record was cut in the middle. ``bad_names`` make no sense.
    """

    pid: int
    opened: Moment
    records: Records
    names: dict[int, str]
    torn: bool
    bad_names: int


def read_blocks(path: Path, rank: int, form: BlockFormat) -> Blocks:
    """Read the file of ``rank``. A file with a header only has no records.

    Raises InputError naming rank and file when it is missing, unreadable, or not what it should be.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"rank {rank}: {path} cannot be read ({error.strerror})") from None
    pid, opened = _read_header(content, path, rank, form)
    blocks, rest = divmod(len(content) - fmt.HEADER.size, fmt.BLOCK_BYTES)
    records = np.frombuffer(content, _RECORD_DTYPE, count=blocks, offset=fmt.HEADER.size)
    names, is_text, name_was_cut, bad_names = _read_names(records, content)
    return Blocks(pid, opened, records[~is_text], names, bool(rest) or name_was_cut, bad_names)


def what_was_lost(*, torn: bool, damaged: int) -> tuple[str, ...]:
    """What is missing of a file, in words; empty when nothing is."""
    texts = []
    if torn:
        texts.append("the last record was cut in the middle and left out (killed while writing)")
    if damaged:
        texts.append(f"{damaged} records make no sense and were left out")
    return tuple(texts)


def is_sensible(records: Records) -> Any:
    """Records whose times are possible."""
    return (records["end"] >= records["start"]) & (records["start"] > 0)


def _read_header(content: bytes, path: Path, rank: int, form: BlockFormat) -> tuple[int, Moment]:
    if len(content) < fmt.HEADER.size:
        raise InputError(
            f"rank {rank}: {path} ends within its header ({len(content)} bytes). The rank was "
            f"killed at its start or the disk was full; {form.are_lost} are lost."
        )
    magic, version, file_rank, pid, realtime_ns, monotonic_ns = fmt.HEADER.unpack_from(content)
    if magic != form.magic:
        raise InputError(f"rank {rank}: {path} does not hold {form.holds} of hpcprof")
    if version != form.version:
        raise InputError(
            f"rank {rank}: {path} has format {version}, this hpcprof reads {form.version}. "
            "Run collect with the hpcprof version of the job."
        )
    if file_rank != rank:
        raise InputError(
            f"rank {rank}: {path} was written by rank {file_rank}. Was a run folder copied over "
            "another one?"
        )
    return pid, Moment(realtime_ns, monotonic_ns)


def _read_names(records: Records, content: bytes) -> tuple[dict[int, str], Any, bool, int]:
    """Names by id; which blocks belong to names; whether the last was cut; how many were bad."""
    names: dict[int, str] = {}
    is_text = np.zeros(len(records), dtype=bool)
    bad = 0
    next_block = 0
    for block in np.flatnonzero((records["flags"] & fmt.KIND_MASK) == fmt.KIND_NAME).tolist():
        if block < next_block or not _is_name(records[block]):
            continue  # the text of a name may look like a record
        length = int(records["value"][block])
        next_block = block + 1 + fmt.text_block_count(length)
        if next_block > len(records):
            is_text[block:] = True
            return names, is_text, True, bad
        is_text[block:next_block] = True
        start = fmt.HEADER.size + (block + 1) * fmt.BLOCK_BYTES
        text = content[start : start + length].decode("utf-8", "replace")
        # an id declared twice with two texts: somebody else wrote into the file; the first holds
        bad += names.setdefault(int(records["name"][block]), text) != text
    return names, is_text, False, bad


def _is_name(record: Any) -> bool:
    zeros = not record["start"] and not record["end"] and not record["thread"]
    return zeros and record["step"] == fmt.NO_STEP and 0 <= record["value"] <= _LONGEST_NAME_BYTES
