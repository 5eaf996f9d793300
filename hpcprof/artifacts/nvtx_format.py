"""The format of ``nvtx.bin``: NVTX ranges as our own recorder saw them (annotate/native).

Header and records are those of ``span_format``, with another magic; times are CLOCK_MONOTONIC of
the node, read by the recorder itself, so nothing has to be aligned. What differs in a record:

    name      id of the range's message; declared by a record of KIND_NAME before its first use
    step      id of the domain's name, declared in the same way; NO_DOMAIN is the default domain
    flags     kind in the low byte: PUSH_POP, START_END or MARK (start and end are equal), or
              span_format.KIND_NAME
    value     the payload as int64, 0 without one; of HorovodOps: bytes
    thread    native id of the thread that closed the range

A range is written when it is closed; one that never was is not there. Ranges of a thread are in the
order in which they were closed, those of several threads in no order.
"""

from __future__ import annotations

MAGIC = b"HPCPROFNVTX\0"
VERSION = 1
NO_DOMAIN = -1

PUSH_POP = 16
START_END = 17
MARK = 18

# domains whose ranges mean something to us
TENSORFLOW_DOMAIN = "TSL"  # one range per operation, where annotate/op_ranges switched it on
HOROVOD_DOMAIN = "HorovodOps"  # one range per tensor, from enqueue to completion

# the shared library, in the package folder annotate/native
LIBRARY = "libhpcprof_nvtx.so"

# the variable by which NVTX finds a listener
INJECTION = "NVTX_INJECTION64_PATH"


def is_recorder(path: str) -> bool:
    """Whether the listener at this path is our recorder."""
    return path.rpartition("/")[2] == LIBRARY
