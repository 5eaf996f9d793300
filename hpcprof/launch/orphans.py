"""Ends what a killed launcher has left on the node: processes of nsys, and its state folder.

Where Slurm ends a job step along its process tree (proctrack/linuxproc), nsys's agent, a daemon
with a parent of its own, lives on for ever (seen with 2022.4 after a rank's death had ended the
step). Nobody else would look for it: the next launcher of the same user on the node does.
"""

from __future__ import annotations

from pathlib import Path

from hpcprof.launch import processes, state_folder
from hpcprof.launch.attempt import MARK_VARIABLE, started_in

_GRACE_SECONDS = 2.0


def end_orphans(scratch: Path) -> list[str]:
    """End the processes that dead launchers have left in ``scratch``; what was done, in words.

    A launcher is dead when nobody holds the lock of its state folder, which works across PID
    namespaces. Those of other nodes, and a recording whose training still runs, are left alone.
    Raises nothing.
    """
    done: list[str] = []
    for state in state_folder.abandoned(scratch):
        attempts = sorted(state.glob("attempt-*"))
        if any(_training_runs(attempt) for attempt in attempts):
            continue
        pids: set[int] = set()
        for attempt in attempts:
            pids.update(processes.with_environment(f"{MARK_VARIABLE}={attempt}"))
        processes.end(pids, grace_seconds=_GRACE_SECONDS)
        state_folder.remove(state)
        if pids:
            noun = "process" if len(pids) == 1 else "processes"
            done.append(
                f"ended {len(pids)} {noun} of nsys, left by {state.name}, a killed launcher"
            )
    return done


def _training_runs(attempt: Path) -> bool:
    started = started_in(attempt)
    if started is None or not started.application_pid:
        return False
    return processes.start_ticks(started.application_pid) is not None
