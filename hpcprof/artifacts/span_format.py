"""The format of ``spans.bin``: our own span records, written by annotate, read by readers.

The file is a 40-byte header followed by 40-byte records, little endian. A record is

    start_ns  int64   CLOCK_MONOTONIC of the node
    end_ns    int64   the same clock, end_ns >= start_ns
    name      uint32  id of the span's name
    step      int32   training step; -1 is "none"
    thread    uint32  native thread id
    flags     uint32  kind in the low byte, see KIND_*
    value     int64   bytes moved; for a beacon CLOCK_REALTIME in ns; for a name its length

A record of KIND_NAME declares the name with id ``name``: ``value`` is the length of its UTF-8 text,
which follows in as many 40-byte blocks as it needs, padded with zeros. A name is declared before
its first use. A last record that is not whole (killed in the middle of a write) is skipped.

A beacon ties a source to the node's clock: ``start_ns`` was read just before and ``end_ns`` just
after the moment at which ``value`` (realtime) was read and the NVTX mark of the same number
(``step``) was placed.
"""

from __future__ import annotations

import struct

MAGIC = b"HPCPROFSPANS"
VERSION = 1
HEADER = struct.Struct("<12sIiIqq")  # magic, version, rank, pid, realtime_ns, monotonic_ns
RECORD = struct.Struct("<qqIiIIq")
BLOCK_BYTES = RECORD.size
NO_STEP = -1

KIND_HOST = 0  # anything the user named
KIND_STEP = 1  # one optimizer update
KIND_PHASE = 2  # part of a step; the name is the phase
KIND_BEACON = 3
KIND_NAME = 4
KIND_BUSY = 5  # the profiler starts, stops or writes; the name says which
KIND_MASK = 0xFF

# NVTX domain and message forms of our own marks and ranges
NVTX_DOMAIN = "hpcprof"
NVTX_STEP_PREFIX = "step "  # "step 12"
NVTX_PHASE_PREFIX = "phase "  # "phase input"
NVTX_BEACON = "hpcprof_beacon seq={seq} mono={mono} real={real}"
NVTX_BEACON_AFTER = "hpcprof_beacon_after seq={seq} mono={mono}"

if HEADER.size != BLOCK_BYTES:
    raise AssertionError("the header must be one block long")


def name_blocks(name_id: int, name: str) -> bytes:
    """The record that declares ``name`` and the blocks that hold its text."""
    text = name.encode("utf-8")
    head = RECORD.pack(0, 0, name_id, NO_STEP, 0, KIND_NAME, len(text))
    return head + text + bytes(-len(text) % BLOCK_BYTES)


def text_block_count(length: int) -> int:
    """How many blocks follow a name record of ``length`` bytes."""
    return -(-length // BLOCK_BYTES)
