"""``hpcprof flush``: ends the recordings of this job on this node, and writes them, before Slurm
ends the job.

A time limit takes every report with it: Slurm ends nsys's agent like any other process of the step
(seen in 6 of 6 jobs). The launcher of each rank does the work; the training goes on.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Sequence

from hpcprof.artifacts import rank_env, rank_state, run_record
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import HpcprofError
from hpcprof.launch import processes
from hpcprof.launch.arguments import new_parser
from hpcprof.launch.processes import say
from hpcprof.launch.state_folder import StateName

REASON = "before the time limit"
_WAIT_SECONDS = 120.0  # a report of some hundred MB is imported meanwhile
_POLL_SECONDS = 0.1

_DESCRIPTION = """\
End the recordings of this job on this node and write them; the training goes on. For the job
script, a few minutes before the time limit: one task per node, in a step that overlaps.

Prints a line per rank, and exits with 0 whatever comes of it."""


class RankState(NamedTuple):
    """The state folder of a rank whose launcher runs on this node."""

    rank: int
    pid: int
    folder: Path


def main(argv: Sequence[str]) -> int:
    """Serve ``hpcprof flush``; returns 0, or 2 for a wrong request."""
    arguments = _parser().parse_args(argv)
    environ = os.environ
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        say("not in a job: SLURM_JOB_ID is not set", "flush")
        return 0
    found = find_ranks(job, scratch_folders(arguments.run_dir, environ))
    if not found:
        node = environ.get("SLURMD_NODENAME") or os.uname().nodename
        say(f"no rank of job {job} runs under hpcprof on {node}", "flush")
        return 0
    for rank, text in flush(found, arguments.reason, arguments.wait):
        say(f"rank {rank}: {text}", "flush")
    return 0


def scratch_folders(run_dir: str | None, environ: Mapping[str, str]) -> list[Path]:
    """Where launchers may have their state folders: all places that open_scratch tries."""
    places = [environ.get("TMPDIR") or "", "/tmp", "/dev/shm"]
    if run_dir:
        try:
            wanted = run_record.launch_settings(ArtifactPaths(run_dir).run_json)["scratch"]
        except HpcprofError:
            wanted = None  # the launchers have used their defaults then
        places.insert(0, wanted or "")
    expanded = (Path(os.path.expandvars(place)).absolute() for place in places if place)
    return [place / f"hpcprof-{os.getuid()}" for place in dict.fromkeys(expanded)]


def find_ranks(job: str, scratch: Sequence[Path]) -> list[RankState]:
    """The ranks of ``job`` on this node that are alive, ascending.

    TMPDIR of this step need not be that of the training's, so their processes are asked too.
    """
    folders: dict[Path, None] = {}
    for place in scratch:
        folders.update(dict.fromkeys(_subfolders(place)))
    folders.update(dict.fromkeys(_named_by_processes()))
    found = []
    for folder in folders:
        name = StateName.from_text(folder.name)
        if name is not None and name.job == job and _is_launcher(name.pid):
            found.append(RankState(name.rank, name.pid, folder))
    return sorted(found)


def flush(
    ranks: Sequence[RankState], reason: str, wait_seconds: float
) -> Iterator[tuple[int, str]]:
    """Ask all launchers at once; yields each rank with what came of it, as they answer."""
    waiting = []
    for state in ranks:
        try:
            rank_state.leave(state.folder, rank_state.STOP, reason)
            waiting.append(state)
        except OSError as error:
            yield state.rank, f"problem: its launcher cannot be told: {error.strerror}"
    deadline = time.monotonic() + wait_seconds
    while waiting:
        for state in tuple(waiting):
            answer = rank_state.find(state.folder, rank_state.STOPPED)
            if answer is None and not _is_launcher(state.pid):
                answer = _unanswered(state)
            if answer is not None:
                waiting.remove(state)
                yield state.rank, answer
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    for state in waiting:
        yield state.rank, f"problem: no answer in {wait_seconds:g} s"


def _unanswered(state: RankState) -> str:
    """The answer for a launcher that has gone without one; a living one removes its folder."""
    if state.folder.exists():
        return "problem: its launcher was killed"
    return "ok: it has ended meanwhile"


def _subfolders(place: Path) -> list[Path]:
    try:
        return [place / name for name in os.listdir(place)]
    except OSError:
        return []


def _named_by_processes() -> Iterator[Path]:
    """State folders in the environment of our processes on this node."""
    prefix = f"{rank_env.STATE_FOLDER}=".encode()
    for _, entries in processes.environments():
        for entry in entries:
            if entry.startswith(prefix):
                yield Path(os.fsdecode(entry[len(prefix) :]))


def _is_launcher(pid: int) -> bool:
    """Whether ``pid`` is a launcher of ours; a folder left by a killed job names a used id."""
    if processes.start_ticks(pid) is None:
        return False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return b"launch" in stream.read().split(b"\0")
    except OSError:
        return False


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("flush", _DESCRIPTION)
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        default=os.environ.get(rank_env.RUN_DIR),
        help="run folder (default: $HPCPROF_RUN_DIR)",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=_WAIT_SECONDS,
        metavar="SECONDS",
        help="for the launchers' answers (default: 120)",
    )
    parser.add_argument(
        "--reason",
        default=REASON,
        metavar="TEXT",
        help=f'why, for the report: "stopped ..." (default: {REASON})',
    )
    return parser
