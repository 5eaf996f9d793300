"""Asks Slurm's accounting how a job ended. Does not interpret the state."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NamedTuple

_TIMEOUT_S = 30
# JobName and other free text may hold the separator, so only fields that cannot are asked for
_FIELDS = "State,ExitCode,ElapsedRaw,TimelimitRaw"


class AccountingRecord(NamedTuple):
    """One job as sacct has it. ``state`` is the first word, for example TIMEOUT or CANCELLED.

    ``elapsed_s`` and ``limit_s`` in seconds; None where Slurm gives none.
    """

    state: str
    exit_code: str
    elapsed_s: int | None
    limit_s: int | None


def job_record(job_id: str) -> AccountingRecord | None:
    """The allocation of ``job_id``, or None when it cannot be had.

    No sacct, no accounting, an unknown job or a job of another cluster all give None: absence of
    an answer is not an answer.
    """
    sacct = shutil.which("sacct")
    if not job_id or sacct is None:
        return None
    command = [sacct, "-X", "-n", "-P", "-j", job_id, "-o", _FIELDS]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


def parse(output: str) -> AccountingRecord | None:
    """The last line that is a record: a requeued job has one line for each time it ran."""
    records = [line.split("|") for line in output.splitlines() if line.count("|") == 3]
    if not records:
        return None
    state, exit_code, elapsed, limit = records[-1]
    return AccountingRecord(
        state=state.split()[0] if state.split() else "",
        exit_code=exit_code,
        elapsed_s=int(elapsed) if elapsed.isdigit() else None,
        limit_s=int(limit) * 60 if limit.isdigit() else None,
    )
