"""Which steps a training has marked, from its span file. For a word about an empty window only."""

from __future__ import annotations

import struct
from pathlib import Path

from hpcprof.artifacts import span_format

_CHUNK_BLOCKS = 16384
_MAX_BYTES = 64 * 2**20  # a second of reading; who marks more before the window is not told


def reaches(spans: Path, first: int) -> bool:
    """Whether a step with the number ``first``, or a later one, has ended. Raises nothing."""
    size = span_format.BLOCK_BYTES
    skip = 1  # blocks that are no records: the header, the text of names
    left = _MAX_BYTES
    try:
        with open(spans, "rb") as stream:
            while left > 0:
                chunk = stream.read(_CHUNK_BLOCKS * size)
                left -= len(chunk)
                whole = len(chunk) // size * size
                for _, _, _, step, _, flags, value in span_format.RECORD.iter_unpack(chunk[:whole]):
                    kind = flags & span_format.KIND_MASK
                    if skip:
                        skip -= 1
                    elif kind == span_format.KIND_NAME:
                        skip = span_format.text_block_count(value)
                    elif kind == span_format.KIND_STEP and step >= first:
                        return True
                if not whole:
                    return False
    except (OSError, struct.error):
        pass  # not readable: nothing is known
    return False
