"""Starts ``hpcprof launch`` as Slurm would, with programs in the place of training and nsys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcprof.artifacts.paths import ArtifactPaths

REPOSITORY = Path(__file__).resolve().parents[2]

# the sections of `nsys profile --help` that matter, as the versions print them
NSYS_HELP_2022 = """
usage: nsys profile [<args>] [application] [<application args>]

\t-c, --capture-range=

\t   Possible values are none, cudaProfilerApi, nvtx, hotkey.

\t--cpuctxsw=

\t   Possible values are 'process-tree', 'system-wide', or 'none'.

\t-s, --sample=

\t   Possible values are 'process-tree', 'system-wide' or 'none'.

\t--session-new=

\t   Start the collection in a new named session.

\t-t, --trace=

\t   Possible values are 'cuda', 'nvtx', 'cublas', 'cublas-verbose', 'mpi', 'ucx', 'osrt',\x20
\t   'openmp' or 'none'.
\t   Select the API(s) to trace. Multiple APIs can be selected, separated by commas only
\t   (no spaces).
\t   If '<api>-annotations' is selected, the corresponding API will also be traced.
\t   Default is 'cuda,nvtx,osrt,opengl'. Application scope.

\t--trace-fork-before-exec=

\t   Possible values are 'true' or 'false'.

\t--wait=

\t   Possible values are 'primary' or 'all'.
"""

# of `nsys launch --help` and `nsys start --help`, 2022.4; the first has deprecated ones too
NSYS_LAUNCH_HELP = """
\t(Deprecated) -s, --sample=

\t--mpi-impl=

\t--nvtx-domain-[include|exclude]=

\t--session-new=

\t-t, --trace=

\t--wait=
"""
NSYS_START_HELP = """
\t-c, --capture-range=

\t--cpuctxsw=

\t-o, --output=

\t-s, --sample=

\t--session=
"""

_RUN = "import sys; {patch}; from hpcprof.__main__ import main; sys.exit(main(sys.argv[1:]))"


def argv(run_dir: Path, command: Sequence[str], *options: str, patch: str = "pass") -> list[str]:
    """Command line of the launcher; ``patch`` is Python that runs in it first."""
    start = [sys.executable, "-c", _RUN.format(patch=patch), "launch"]
    return [*start, "--run-dir", str(run_dir), *options, "--", *command]


def environ(scratch: Path, **more: str) -> dict[str, str]:
    """The environment of Slurm's task 3 of 4, job 77, step 1."""
    ours = ("HPCPROF_", "SLURM_", "OMPI_", "PMI")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    slurm = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    slurm |= {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1", "SLURMD_NODENAME": "node1"}
    return {**kept, **slurm, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(scratch), **more}


def launch(
    run_dir: Path,
    command: Sequence[str],
    *options: str,
    env: Mapping[str, str],
    patch: str = "pass",
) -> subprocess.CompletedProcess[str]:
    """Run the launcher to its end."""
    return subprocess.run(
        argv(run_dir, command, *options, patch=patch),
        env=dict(env),
        cwd=run_dir.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def manifest(run_dir: Path, rank: int = 3) -> dict[str, Any]:
    """The manifest of a rank."""
    value: dict[str, Any] = json.loads(ArtifactPaths(run_dir).manifest(rank).read_text())
    return value


def write_run_json(run_dir: Path, **launch_section: object) -> None:
    """A run record with these settings of launch."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "run.json").write_text(json.dumps({"schema": 1, "launch": launch_section}))


def wait_until(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Poll until true. Raises AssertionError when the time is up."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)


# of the fake's `nsys stop`: as the real one writes its report itself
WRITES = 'echo report > "$(cat $here/report).nsys-rep"; echo Generated:; '
WRITES += 'echo "    $(cat $here/report).nsys-rep"'


def fake_nsys(folder: Path, behaviour: str, *, start: str = "", stop: str = WRITES) -> Path:
    """A program that answers --version and --help as nsys does, and else runs shell text.

    ``behaviour`` is for profile and launch; ``$report`` is the report's path there (profile only)
    and ``"$@"`` the command. ``$here`` is ``folder``; ``calls`` in it gets a line per call.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "help").write_text(NSYS_HELP_2022)
    (folder / "launch-help").write_text(NSYS_LAUNCH_HELP)
    (folder / "start-help").write_text(NSYS_START_HELP)
    program = folder / "nsys"
    program.write_text(
        f"""#!/bin/sh
here={folder}
echo "$*" >> $here/calls
case "$1 $2" in
  --version*) echo "NVIDIA Nsight Systems version 2022.4.2.1-df9881f"; exit 0 ;;
  "profile --help") cat $here/help; exit 0 ;;
  "launch --help") cat $here/launch-help; exit 0 ;;
  "start --help") cat $here/start-help; exit 0 ;;
  stop*) {stop}
     exit ;;
esac
if [ "$1" = launch ]; then
  shift
else
  kind=$1
  while [ "$1" != -o ]; do shift; done
  echo "$2" > $here/report
  report=$2.nsys-rep
  shift 2
  if [ $kind = start ]; then
    {start or ":"}
    exit
  fi
fi
while [ "${{1#--}}" != "$1" ]; do shift; done
{behaviour}
"""
    )
    program.chmod(0o755)
    return program


def calls(folder: Path) -> list[str]:
    """What the fake nsys was asked for, beside --version and --help."""
    lines = (folder / "calls").read_text().splitlines()
    return [line for line in lines if "--help" not in line and "--version" not in line]


def starts(marks: Path) -> int:
    """How often the application of ``counting`` was started."""
    return len(marks.read_text().splitlines()) if marks.exists() else 0


def counting(marks: Path, code: int = 0) -> list[str]:
    """An application that leaves one line per start and ends with ``code``."""
    return ["/bin/sh", "-c", f"echo started >> {marks}; exit {code}"]
