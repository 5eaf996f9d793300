"""Is the right hpcprof here, and can a job run it?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hpcprof
from hpcprof.doctor import command
from hpcprof.doctor.registry import LOGIN, check
from hpcprof.doctor.row import Row, fail, not_checked, ok, warn
from hpcprof.doctor.subject import Subject

_IMPORT = "import hpcprof; print(hpcprof.__version__)"
# what the entry points of our own installations import
_OURS = b"hpcprof.__main__"


@check("hpcprof", where=LOGIN, lane="hpcprof")
def this_hpcprof(subject: Subject) -> Iterator[Row]:
    """Can the interpreter of jobs import hpcprof, with nothing of the user's in its way?"""
    interpreter = subject.request.interpreter or sys.executable
    if not os.path.exists(interpreter):
        advice = "Check the node with --srun, or mend python.interpreter."
        yield not_checked("hpcprof", f"{interpreter} is not on this machine", advice)
        return
    said = command.run([interpreter, "-I", "-c", _IMPORT], os.environ, seconds=8.0)
    if said.code:
        yield fail(
            "hpcprof",
            f"{interpreter} -I cannot import hpcprof: {said.last_line}",
            "Install hpcprof into a virtual environment (not with --user) and call it from there.",
        )
    elif said.last_line != hpcprof.__version__:
        yield warn(
            "hpcprof",
            f"jobs would run hpcprof {said.last_line}, this is {hpcprof.__version__}",
            "Install the same version for python.interpreter, or leave that field out.",
        )
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        yield ok("hpcprof", f"{hpcprof.__version__}, Python {version}, {interpreter}")


@check("command hpcprof", where=LOGIN, lane="hpcprof")
def name_clash(subject: Subject) -> Iterator[Row]:
    """Is the command hpcprof on PATH ours, or HPCToolkit's?"""
    found = command.find("hpcprof", os.environ)
    if found is None:
        yield ok("command hpcprof", "not on PATH; python -m hpcprof works as well")
    elif _OURS in Path(found).read_bytes()[:4096]:
        yield ok("command hpcprof", found)
    else:
        yield warn(
            "command hpcprof",
            f"{found} is another program of that name (HPCToolkit has one)",
            "Type hpcprof-dl, which is always ours, or put our folder first in PATH.",
        )
