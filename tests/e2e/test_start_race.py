"""Many starts of nsys on one node at the same moment: every application runs, and runs once.

nsys keeps one table of sessions per node, and without care some of eight simultaneous starts never
reach their application. The number that was recorded is printed; only the applications count here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.unit import launching

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS = 10
RANKS = 8
FIRST_CODE = 10

# "RANK PID" in one write, at the end of the file whoever else writes; then a code of its own
PROGRAM = f'echo "$HPCPROF_RANK $$" >> "$0"; exit $(({FIRST_CODE} + HPCPROF_RANK))'

# instead of `nsys profile`; what it is asked about itself the real one answers
BROKEN_NSYS = """#!/bin/sh
case "$1 $2" in --version*|*" --help") exec {nsys} "$@" ;; esac
{behaviour}
"""
# starts the application after SECONDS, when the launcher may have given it up: out of its reach, so
# that nothing but the start token decides who runs the application
LATE = """
while [ "$1" != {python} ]; do shift; done
env -u HPCPROF_NSYS_ATTEMPT setsid sh -c 'sleep "$0"; "$@"; echo "$?" >> {ended}' \\
    {seconds} "$@" < /dev/null > /dev/null 2>&1 &
exec sleep 1000
"""
BROKEN_WATCHDOG_SECONDS = 1.0
# a shim takes 0.1 s to its token, more on a busy machine: about at the same moment as the launcher
LATE_BY_SECONDS = (0.7, 0.9, 1.1)
# for the stand-ins above only: nsys itself keeps its 15 s
IMPATIENT = (
    "from hpcprof.launch import nsys_start, nsys_watch; "
    f"nsys_start.WATCHDOG_SECONDS = {BROKEN_WATCHDOG_SECONDS}; nsys_watch.STALL_SECONDS = 1.0"
)


class Start(NamedTuple):
    """One launcher: which rank of which job it is, and the nsys on its path."""

    rank: int
    ranks: int
    job: str
    run_dir: Path
    nsys: Path
    patch: str = "pass"


def start_all(starts: Sequence[Start], scratch: Path) -> list[int]:
    """Run all launchers at once; returns their exit codes."""
    environs = [_environ(start, scratch) for start in starts]
    for start in starts:
        launching.write_run_json(start.run_dir)
    running = [
        subprocess.Popen(
            launching.argv(start.run_dir, _program(start), "--profiler", "nsys", patch=start.patch),
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for start, environ in zip(starts, environs, strict=True)
    ]
    return [process.wait(120) for process in running]


def _program(start: Start) -> list[str]:
    return ["/bin/sh", "-c", PROGRAM, str(_marks(start.run_dir))]


def _marks(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.marks")


def _environ(start: Start, scratch: Path) -> Mapping[str, str]:
    return launching.environ(
        scratch,
        PATH=f"{start.nsys.parent}:{os.environ['PATH']}",
        SLURM_JOB_ID=start.job,
        SLURM_PROCID=str(start.rank),
        SLURM_LOCALID=str(start.rank),
        SLURM_STEP_NUM_TASKS=str(start.ranks),
    )


def check(starts: Sequence[Start], codes: Sequence[int]) -> int:
    """Every application of these starts ran once; returns how many were recorded by nsys."""
    assert list(codes) == [FIRST_CODE + start.rank for start in starts]
    recorded = 0
    for run_dir in {start.run_dir for start in starts}:
        ranks = sorted(start.rank for start in starts if start.run_dir == run_dir)
        lines = [line.split() for line in _marks(run_dir).read_text().splitlines()]
        assert sorted(int(rank) for rank, _ in lines) == ranks
        assert len({pid for _, pid in lines}) == len(ranks)
        for rank in ranks:
            written = launching.manifest(run_dir, rank)
            assert written["exit_code"] == FIRST_CODE + rank
            assert [str(rank), str(written["pid"])] in lines
            recorded += written["state"] == "OK"
    return recorded


def job_of(rounds: int, nsys: Path, folder: Path, ranks: int = RANKS) -> list[Start]:
    """All ranks of one job. Session names are global on a node, so jobs have numbers of ours."""
    job = f"{os.getpid()}{rounds:03d}"
    return [Start(rank, ranks, job, folder / f"run{rounds}", nsys) for rank in range(ranks)]


def left_of(scratch: Path) -> list[str]:
    """Processes of nsys that a launcher of this test has left behind."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{name}/environ").read_bytes()
            if f"HPCPROF_NSYS_ATTEMPT={scratch}/".encode() in environ:
                found.append(Path(f"/proc/{name}/cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_eight_starts_at_once_run_eight_applications_ten_times(
    nsys: Path, scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = []
    for number in range(ROUNDS):
        starts = job_of(number, nsys, tmp_path)
        recorded.append(check(starts, start_all(starts, scratch)))
    assert left_of(scratch) == []
    with capsys.disabled():
        print(f"\n  {sum(recorded)} of {ROUNDS * RANKS} recorded; by round {recorded}")
    assert sum(recorded) >= ROUNDS * RANKS // 2, "this tried the fallback and not the start"


def test_two_jobs_that_start_at_once_do_not_cost_each_other_an_application(
    nsys: Path, scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (job_of(number, nsys, tmp_path, ranks=4) for number in (100, 101))
    starts = [one for pair in zip(first, second, strict=True) for one in pair]
    recorded = check(starts, start_all(starts, scratch))
    assert left_of(scratch) == []
    with capsys.disabled():
        print(f"\n  {recorded} of {len(starts)} of two jobs recorded")


@pytest.mark.parametrize("number", [200, 201])
def test_starts_that_fall_back_among_others_run_their_application_once(
    nsys: Path, scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """Three real starts beside one that hangs, one that fails, and three that come about too late.

    Of the late ones either the launcher or nsys starts the application, as it happens.
    """
    ended = tmp_path / "late-starts-that-ended"
    late = [
        LATE.format(python=sys.executable, ended=ended, seconds=seconds)
        for seconds in LATE_BY_SECONDS
    ]
    starts = job_of(number, nsys, tmp_path)
    for rank, behaviour in enumerate(["exec sleep 1000", "exit 1", *late]):
        stand_in = tmp_path / f"nsys{rank}" / "nsys"
        stand_in.parent.mkdir()
        stand_in.write_text(BROKEN_NSYS.format(nsys=nsys, behaviour=behaviour))
        stand_in.chmod(0o755)
        starts[rank] = starts[rank]._replace(nsys=stand_in, patch=IMPATIENT)
    recorded = check(starts, start_all(starts, scratch))

    manifests = [launching.manifest(start.run_dir, start.rank) for start in starts]
    fell_back = [written["profiler"]["fell_back"] for written in manifests]
    assert fell_back[:2] == [True, True]
    tried = sum(attempts(written) for written in manifests[2 : 2 + len(late)])
    launching.wait_until(lambda: launching.starts(ended) == tried, seconds=60)
    # those that came too late have found the token taken
    assert check(starts, [FIRST_CODE + start.rank for start in starts]) == recorded
    assert left_of(scratch) == []
    with capsys.disabled():
        print(f"\n  {recorded} of {RANKS} recorded, {sum(fell_back)} fell back")


def attempts(written: dict[str, Any]) -> int:
    """How often nsys, or what stood in for it, was started for this rank."""
    failed = [text for text in written["warnings"] if text.startswith("nsys start ")]
    return len(failed) + (not written["profiler"]["fell_back"])
