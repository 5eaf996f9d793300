"""One rank under ``hpcprof launch`` and the real nsys, and what its report holds."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.setup import paths as tools_of_tests
from tests.unit import launching

# nsys's session names are global on a node, and other tests may run beside these
JOB = str(os.getpid())
SESSION = f"hpcprof-{JOB}-1-3"

# ranges in our domain for SECONDS, then exit code 7; writes down the signals it gets
APPLICATION = """
import os, signal, sys, time
import nvtx
marks, seconds = sys.argv[1], float(sys.argv[2])
with open(marks, "a", buffering=1) as log:
    log.write(f"start {os.getpid()}\\n")
    for number in (signal.SIGUSR1, signal.SIGUSR2, *map(int, sys.argv[3:])):
        signal.signal(number, lambda n, f: log.write(f"signal {n}\\n"))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with nvtx.annotate("step", domain="hpcprof"):
            time.sleep(0.02)
    log.write("end\\n")
print("to stdout")
print("to stderr", file=sys.stderr)
sys.exit(7)
"""
ENDS_OF_APPLICATION = (7, "to stdout\n", "to stderr\n")

# processes of nsys by their command lines
AGENT, COMMAND_LINE, HELPER = "--start-agent", "^[^ ]*nsys profile", "^[^ ]*nsys-launcher"


def application(marks: Path, seconds: float, *signals: int) -> list[str]:
    """Command line of ``APPLICATION``, which survives ``signals``."""
    python = tools_of_tests.train_python()
    return [str(python), "-c", APPLICATION, str(marks), str(seconds), *map(str, map(int, signals))]


class Rank:
    """A running launcher and the processes below it."""

    def __init__(
        self,
        nsys: Path,
        scratch: Path,
        run_dir: Path,
        command: Sequence[str],
        patch: str = "pass",
        *,
        prefix: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``prefix`` goes before the launcher, ``settings`` into run.json."""
        self.run_dir = run_dir
        launching.write_run_json(run_dir, **{"nsys_path": str(nsys), **(settings or {})})
        argv = launching.argv(run_dir, command, "--profiler", "nsys", patch=patch)
        self.environ = launching.environ(scratch, **{"SLURM_JOB_ID": JOB, **(environ or {})})
        self.launcher = subprocess.Popen(
            [*prefix, *argv],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._mark = f"/hpcprof-{os.getuid()}/{JOB}.1."

    def nsys_pids(self) -> dict[int, str]:
        """Processes of nsys and their command lines."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                entries = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                ours = (e for e in entries if e.startswith(b"HPCPROF_NSYS_ATTEMPT="))
                if any(self._mark.encode() in entry for entry in ours):
                    line = Path(f"/proc/{name}/cmdline").read_bytes()
                    found[int(name)] = line.replace(b"\0", b" ").decode()
        return found

    def pid(self, part: str) -> int:
        """The process of nsys whose command line holds ``part``."""
        (pid,) = [pid for pid, line in self.nsys_pids().items() if re.search(part, line)]
        return pid

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of the launcher, once it has ended."""
        out, err = self.launcher.communicate(timeout=90)
        assert self.nsys_pids() == {}, "something of nsys was left on the node"
        return self.launcher.returncode, out, err


def ranges(nsys: Path, report: Path, name: str = "step") -> int:
    """Number of NVTX ranges in a report whose name is like ``name`` (SQL)."""
    base_file = f"{report}.sqlite"
    export = [str(nsys), "export", "-t", "sqlite", "-o", base_file, str(report)]
    subprocess.run(export, check=True, capture_output=True, timeout=120)
    with contextlib.closing(sqlite3.connect(base_file)) as base:
        # nsys leaves out a table that saw nothing
        tables = base.execute("select count(*) from sqlite_master where name = 'NVTX_EVENTS'")
        if not tables.fetchone()[0]:
            return 0
        query = "select count(*) from NVTX_EVENTS left join StringIds on textId = id "
        query += "where eventType in (59, 60) and coalesce(text, value) like ?"
        count: int = base.execute(query, (name,)).fetchone()[0]
    return count


def wait_for_line(marks: Path, text: str) -> None:
    """Wait until the application has written ``text``."""
    launching.wait_until(lambda: marks.exists() and text in marks.read_text(), seconds=40)
