"""The way to our NVTX recorder, a C library that NVTX itself loads (``native/nvtx_recorder.c``)."""

from __future__ import annotations

import os
from typing import Callable

from hpcprof.annotate.notes import leave_note
from hpcprof.artifacts import nvtx_format


def is_ours() -> bool:
    """Whether NVTX in this process hands its ranges to our recorder."""
    return nvtx_format.is_recorder(os.environ.get(nvtx_format.INJECTION, ""))


def flusher() -> Callable[[], object] | None:
    """What writes the recorder's kept ranges, None when it is not used here.

    Costs about a microsecond, and does not wait when another thread is writing. Raises nothing.
    """
    if not is_ours():
        return None
    try:
        import ctypes

        # the library that NVTX loads or has loaded: one path is loaded once
        library = ctypes.CDLL(os.environ[nvtx_format.INJECTION])
        flush = library.hpcprof_nvtx_flush
        flush.restype = None
        flush.argtypes = ()
    except Exception as error:  # another system's library in a container, for example
        leave_note(f"NVTX ranges are not recorded: the recorder cannot be loaded ({error})")
        return None
    else:
        wanted: Callable[[], object] = flush
        return wanted
