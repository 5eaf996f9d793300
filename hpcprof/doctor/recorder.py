"""Can ranks without nsys record what TensorFlow and Horovod say of themselves?"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from hpcprof.artifacts import nvtx_format
from hpcprof.doctor.registry import NODE, check
from hpcprof.doctor.row import Row, ok, warn
from hpcprof.doctor.subject import Subject
from hpcprof.resources import import_root

NAME = "NVTX recorder"
_ENTRY = "InitializeInjectionNvtx2"  # what NVTX calls


@check(NAME, where=NODE, lane="recorder")
def nvtx_recorder(subject: Subject) -> Iterator[Row]:
    """Was our NVTX recorder compiled when hpcprof was installed, and can it be loaded?"""
    yield judge(Path(import_root(), "hpcprof", "annotate", "native", nvtx_format.LIBRARY))


def judge(library: Path) -> Row:
    """The row about the library at this path. It is loaded into this process."""
    if not library.exists():
        return warn(
            NAME,
            "it was not compiled; ranks without nsys record no ranges of TensorFlow and Horovod",
            "Install hpcprof again where there is a C compiler (cc), or leave the ranks to nsys.",
        )
    try:
        getattr(ctypes.CDLL(os.fspath(library)), _ENTRY)
    except (OSError, AttributeError) as error:
        advice = "Install hpcprof again, on a machine with the system of the compute nodes."
        return warn(NAME, f"it cannot be loaded here: {error}", advice)
    return ok(NAME, "compiled, and can be loaded")
