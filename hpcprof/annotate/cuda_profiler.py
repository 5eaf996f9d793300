"""Switches a profiler that waits for it (``nsys -c cudaProfilerApi``) on and off.

By the CUDA driver's own calls: the driver is in every process that uses a GPU, whereas the runtime
library is hidden inside TensorFlow.
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libcuda.so.1"
START = "cuProfilerStart"
STOP = "cuProfilerStop"

_SUCCESS = 0
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has none, others of the process may


def switch(call: str) -> str | None:
    """Make the call START or STOP; returns what went wrong, in words. Raises nothing."""
    try:
        library = ctypes.CDLL(LIBRARY)
        result = library[call]()
        if result == _NO_CONTEXT:
            result = _in_a_live_context(library, call)
    except (OSError, AttributeError) as error:
        return f"{call} cannot be called: {error}"
    return None if result == _SUCCESS else f"{call} failed (CUresult {result})"


def _in_a_live_context(library: Any, call: str) -> int:
    """Call with a context that TensorFlow has made; never make one, which would cost GPU memory.

    TensorFlow works in the devices' primary contexts, made current in its own threads only.
    """
    count = ctypes.c_int(0)
    library.cuDeviceGetCount(ctypes.byref(count))
    for device in range(count.value):
        flags, active = ctypes.c_uint(0), ctypes.c_int(0)
        library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        context = ctypes.c_void_p()
        if not active.value:
            continue
        if library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != _SUCCESS:
            continue
        try:
            library.cuCtxPushCurrent_v2(context)
            result: int = library[call]()
            library.cuCtxPopCurrent_v2(ctypes.byref(context))
        finally:
            library.cuDevicePrimaryCtxRelease_v2(device)
        return result
    return _NO_CONTEXT
