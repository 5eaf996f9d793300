"""Rules about the recording itself: what is missing, and what that means for the verdict."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from hpcprof.analyses import arrivals
from hpcprof.analyses.run_results import RunResults
from hpcprof.artifacts import manifest
from hpcprof.findings.model import INFO, NOT_COLLECTED, WARN, Finding
from hpcprof.findings.registry import rule
from hpcprof.trace.model import RankInfo
from hpcprof.units import duration, ranks


@rule
def ranks_missing(results: RunResults) -> Iterator[Finding]:
    """Ranks of the job left nothing that can be read.

    Fires: 4 ranks were started and 3 left a folder, or one folder holds no usable source.
    Stays quiet: every rank left at least its own spans.
    """
    lost = tuple(info.rank for info in results.ranks if not _is_usable(info))
    gone = tuple(sorted((*results.missing, *lost)))
    if not gone:
        return
    reasons = {info.reason for info in results.ranks if info.rank in lost and info.reason}
    yield Finding(
        rule="ranks-missing",
        level=WARN,
        status=NOT_COLLECTED,
        ranks=gone,
        message=f"{ranks(gone)} of {results.job.world_size} left nothing that can be used; "
        "the verdict speaks of the others only",
        evidence=tuple(sorted(reasons)),
        advice="look at the job's output for these ranks; a rank that never started leaves none",
    )


@rule
def job_ended_early(results: RunResults) -> Iterator[Finding]:
    """The job did not end by itself: killed rank, time limit, failed program.

    Fires: rank 2 was ended by SIGKILL; Slurm says TIMEOUT; all ranks have no end record.
    Stays quiet: every rank returned exit code 0.
    """
    killed = [info for info in results.ranks if info.exit_code not in (0, None)]
    unfinished = tuple(info.rank for info in results.ranks if info.ended is None)
    end = results.job_end
    if end is not None and end.state == "TIMEOUT":
        limit = "" if end.limit_s is None else f" of {duration(end.limit_s * 1e9)}"
        yield Finding(
            rule="job-ended-early",
            level=WARN,
            cause="time limit",
            ranks=unfinished,
            message=f"the job reached its time limit{limit}: Slurm ended it{_reached(results)}",
            advice="ask for more time, or for fewer steps; what was recorded until then is used",
        )
        return
    if killed:  # one finding: the others are the consequence, Slurm ends the whole step
        yield _killed(results, _first_victim(killed))
    elif unfinished:
        yield Finding(
            rule="job-ended-early",
            level=WARN,
            cause="killed",
            ranks=unfinished,
            message=f"{ranks(unfinished)} left no end record{_reached(results)}: killed together "
            "with the launcher (time limit, scancel, memory limit, failed node), or still running",
            advice="look at sacct and at the end of the job's output",
        )


# as shells, srun and launch use them
_SHELL_CODES = {126: " (the command cannot be executed)", 127: " (the command was not found)"}
_MEMORY_ADVICE = ", at the memory limit of the job (sacct -o MaxRSS) and at the node's memory"


def _first_victim(killed: list[RankInfo]) -> RankInfo:
    """The rank that failed by itself: SIGKILL or an error rather than the SIGTERM that follows."""
    own_fault = [i for i in killed if i.exit_code not in (128 + signal.SIGTERM, -signal.SIGTERM)]
    return min(own_fault or killed, key=lambda i: i.ended.realtime_ns if i.ended else 0)


def _killed(results: RunResults, info: RankInfo) -> Finding:
    code = info.exit_code or 0
    number = code - 128 if code > 128 else -code
    if number > 0:
        try:
            how = f"was ended by {signal.Signals(number).name}"
        except ValueError:
            how = f"was ended by signal {number}"
    else:
        how = f"failed with exit code {code}"
        how += _SHELL_CODES.get(code, "")
    return Finding(
        rule="job-ended-early",
        level=WARN,
        cause="killed" if number > 0 else "failed",
        ranks=(info.rank,),
        nodes=(info.node,),
        message=f"rank {info.rank} (node {info.node}) {how}{_reached(results)}",
        advice="look at the job's output of this rank"
        + (_MEMORY_ADVICE if number == signal.SIGKILL else ""),
    )


def _reached(results: RunResults) -> str:
    last = [
        s.last_step for i in results.ranks for s in i.sources.values() if s.last_step is not None
    ]
    return f" after step {max(last)}" if last else " before the first step ended"


@rule
def recording_incomplete(results: RunResults) -> Iterator[Finding]:
    """A source that was asked for is lost, empty or cut off on some ranks.

    Fires: the nsys report of rank 1 cannot be imported; spans stopped when the disk was full.
    Stays quiet: everything asked for arrived; nsys was not asked for.
    """
    by_reason: dict[tuple[str, str, str], list[int]] = {}
    for info in results.ranks:
        for source in info.sources.values():
            if source.state in (manifest.LOST, manifest.EMPTY, manifest.PARTIAL):
                key = (source.name, source.state, source.reason)
                by_reason.setdefault(key, []).append(info.rank)
        seen = info.training.warnings if info.training is not None else ()
        for warning in (*info.warnings, *seen):
            by_reason.setdefault(("", "", warning), []).append(info.rank)
    for (name, state, reason), affected in sorted(by_reason.items()):
        what = f"{name} is {state} on {ranks(affected)}" if name else ranks(affected)
        yield Finding(
            rule="recording-incomplete",
            level=WARN if state in (manifest.LOST, manifest.EMPTY) else INFO,
            status=NOT_COLLECTED,
            ranks=tuple(affected),
            message=f"{what}: {reason}" if reason else what,
            advice="the other sources of these ranks are used" if name else "",
        )


@rule
def not_collected(results: RunResults) -> Iterator[Finding]:
    """What this recording cannot show, and what would show it.

    Fires: always for what no source of this run contains.
    Stays quiet: about what was recorded.
    """
    for message, advice, recipe, affected in _lacking(results):
        yield Finding(
            rule="not-collected",
            level=INFO,
            status=NOT_COLLECTED,
            ranks=affected,
            message=message,
            advice=advice,
            next=(("recipe", recipe), ("ranks", list(affected))),
        )


def _lacking(results: RunResults) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    """What is missing, how to get it, the recipe that does, and the ranks concerned."""
    everyone = tuple(info.rank for info in results.ranks)
    without = tuple(i.rank for i in results.ranks if not _has_usable(i, "nsys"))
    if without:
        failed = all(_has_failed(info) for info in results.ranks if info.rank in without)
        yield (
            f"operating system calls, MPI calls and GPU kernels of {ranks(without)}: "
            "no Nsight Systems report",
            ""  # recording-incomplete says why
            if failed
            else "have nsys on PATH in the job (modules.profile_load of the site file) and keep "
            "profile.profiler: auto in hpcprof.yaml",
            "timeline",
            without,
        )
    elif not results.has_device_activity:
        yield (
            "GPU kernels and copies: none in the reports (no GPU used, or CUDA not traced)",
            "",
            "kernels",
            everyone,
        )
    has_form = arrivals.PROFILER in (results.collective_form, results.transfer_form)
    if not has_form and _may_use_horovod(results):
        what_is_known = "no collectives were recorded"
        if results.collective_form == arrivals.MARKED:
            what_is_known = "only the marked allreduce phase is known"
        yield (
            f"when each gradient was handed over, and its size: {what_is_known}",
            "record Horovod's own ranges: nsys tracing nvtx, and a Horovod built with NVTX",
            "timeline",
            everyone,
        )


def _may_use_horovod(results: RunResults) -> bool:
    """Whether a rank trains with Horovod, or no hook could tell."""
    return any(i.training is None or i.training.horovod is not None for i in results.ranks)


def _has_failed(info: RankInfo) -> bool:
    """Whether nsys was asked for, was there, and left nothing that can be used."""
    source = info.sources.get("nsys")
    return source is not None and source.state in (manifest.LOST, manifest.EMPTY)


def _has_usable(info: RankInfo, source: str) -> bool:
    return source in info.sources and info.sources[source].is_usable


def _is_usable(info: RankInfo) -> bool:
    return any(source.is_usable for source in info.sources.values())
