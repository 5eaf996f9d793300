"""The switch of TensorFlow's range per operation, which is in its libraries but not in its API.

TensorFlow's executor names each operation it runs, by an NVTX range in the domain "TSL" on the
thread that runs it, while its annotation stack is enabled; normally only its own GPU tracer does
that. Where somebody listens to NVTX, the ranges go there and nowhere else.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Callable

Switch = Callable[[int], None]  # 1: operations are named from now on, 0: no longer

_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2", "libtensorflow_cc.so.3")
# void AnnotationStack::Enable(bool), from TensorFlow 2.16 on (2.17.1 and 2.21 looked into)
_FUNCTIONS = ("_ZN3tsl8profiler15AnnotationStack6EnableEb",)
# std::atomic<int> g_annotation_enabled before (2.15.1 looked into); the second up to 2.9
_FLAGS = (
    "_ZN3tsl8profiler8internal20g_annotation_enabledE",
    "_ZN10tensorflow8profiler8internal20g_annotation_enabledE",
)


class SwitchMissingError(Exception):
    """This TensorFlow cannot be made to name its operations; the text says why."""


def find_switch() -> Switch:
    """The switch of the TensorFlow that is loaded. Loads nothing.

    Raises SwitchMissingError in words that complete "not available: …".
    """
    tensorflow = sys.modules.get("tensorflow")
    where = getattr(tensorflow, "__file__", None)
    if not where:
        raise SwitchMissingError("TensorFlow is not loaded")
    if not _is_built_for_cuda():
        # ranges would be pushed nowhere, at a cost
        raise SwitchMissingError("this TensorFlow is not built for CUDA and so holds no NVTX")
    libraries = list(_loaded_libraries(os.path.dirname(where)))
    for library in libraries:
        for symbol in _FUNCTIONS:
            if hasattr(library, symbol):
                return _function_switch(library[symbol])
    for library in libraries:
        for symbol in _FLAGS:
            try:
                return _flag_switch(ctypes.c_int.in_dll(library, symbol))
            except ValueError:
                continue
    version = getattr(tensorflow, "__version__", "of unknown version")
    raise SwitchMissingError(f"TensorFlow {version} has no switch that hpcprof knows")


def _is_built_for_cuda() -> bool:
    """As its build says; True when it says nothing, since then the symbols decide."""
    module = sys.modules.get("tensorflow.python.platform.build_info")
    facts = getattr(module, "build_info", None)
    try:
        return bool(facts["is_cuda_build"])  # type: ignore[index]
    except (TypeError, KeyError):
        return True


def _loaded_libraries(folder: str) -> Any:
    for name in _LIBRARIES:
        try:
            yield ctypes.CDLL(os.path.join(folder, name), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue  # not part of this TensorFlow


def _function_switch(function: Any) -> Switch:
    function.argtypes = [ctypes.c_bool]
    function.restype = None

    def switch(on: int) -> None:
        function(bool(on))

    return switch


def _flag_switch(flag: ctypes.c_int) -> Switch:
    def switch(on: int) -> None:
        flag.value = on

    return switch
