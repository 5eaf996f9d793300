"""``python -m hpcprof``: verbs that run inside a job are served without the analysis packages."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Sequence

# argparse only: the training's environment has no click, and the way to the training is short
_IN_JOB_VERBS = {
    "launch": "hpcprof.launch.cli",
    "flush": "hpcprof.launch.flush",
    "agent": "hpcprof.launch.agent.cli",
    "workload": "hpcprof.workloads.cli",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; ``argv`` without the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    module = _IN_JOB_VERBS.get(arguments[0]) if arguments else None
    if module is not None:
        verb = importlib.import_module(module)
        return int(verb.main(arguments[1:]))
    from hpcprof.cli.main import main as analysis_main

    return int(analysis_main(arguments))


def _forget_current_folder() -> None:
    """Take the current folder off the import path, where ``python -m`` has put it.

    It is the training's: a ``queue.py`` in it would take the place of the standard module.
    """
    package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    current = os.getcwd()
    sys.path[:] = [p for p in sys.path if (p or current) != current or current == package_parent]


if __name__ == "__main__":
    _forget_current_folder()
    sys.exit(main())
