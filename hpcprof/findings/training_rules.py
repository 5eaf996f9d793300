"""Rules about the training as a whole: that it stood still, or is not one training at all."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses import hangs
from hpcprof.analyses.hangs import HangEpisode
from hpcprof.analyses.run_results import RunResults
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.findings.model import CRITICAL, WARN, Finding
from hpcprof.findings.registry import rule
from hpcprof.trace.model import RankInfo
from hpcprof.units import counted, duration, ranks

_MOST_HANGS = 3
_MOST_FILES = 4
_HOROVOD = "horovod"


@rule
def training_hung(results: RunResults) -> Iterator[Finding]:
    """No step ended for so long that the watchdog wrote down what every thread was doing.

    Fires: no step for 610 s after step 57; critical when none came any more.
    Stays quiet: every step came within hang_after_s; the watchdog is off (hang_after_s: 0).
    """
    worst = sorted(results.hangs, key=lambda hang: (hang.went_on is not False, -hang.seconds))
    for hang in worst[:_MOST_HANGS]:
        yield _hung(results, hang)
    left = len(worst) - _MOST_HANGS
    if left > 0:
        yield Finding(
            rule="training-hung",
            level=WARN,
            message=f"{counted(left, 'shorter hang')} besides; see hangs in quality.ranks of "
            "findings.json",
        )


@rule
def horovod_size_mismatch(results: RunResults) -> Iterator[Finding]:
    """Horovod connects fewer ranks than the job has, so that they do not train one model.

    Fires: Horovod sees 1 rank where the job has 4 (its MPI does not fit srun's).
    Stays quiet: as many as the job has; Horovod's size is not known (another strategy).
    """
    # what the ranks were told by Slurm or MPI: run.json may ask for more than were started
    expected = max((info.world_size for info in results.ranks), default=0)
    by_size: dict[int, list[RankInfo]] = {}
    for info in results.ranks:
        if info.horovod_size is not None and info.horovod_size < expected:
            by_size.setdefault(info.horovod_size, []).append(info)
    for size, infos in sorted(by_size.items()):
        what_it_means = (
            "each rank trains its own model"
            if size == 1
            else "they train models of their own, in groups"
        )
        yield Finding(
            rule="horovod-size-mismatch",
            level=CRITICAL,
            ranks=tuple(info.rank for info in infos),
            nodes=tuple(sorted({info.node for info in infos})),
            cause="launch",
            message=f"Horovod sees {counted(size, 'rank')} where the job has {expected}: "
            f"{what_it_means}, and no verdict on stragglers or transfer means anything",
            evidence=(f"hvd.size() is {size} on {ranks(info.rank for info in infos)}",),
            advice="the MPI that Horovod was built with does not fit the one srun starts: try "
            "srun --mpi=pmix or --mpi=pmi2 (srun --mpi=list shows what there is), or build "
            "Horovod with the cluster's MPI; hpcprof doctor checks it",
        )


@rule
def ranks_share_a_gpu(results: RunResults) -> Iterator[Finding]:
    """Two ranks of a node can use one GPU only, and it is the same one.

    Fires: ranks 0 and 1 of a node each see the GPU GPU-…1c3f and no other.
    Stays quiet: ranks that see several GPUs (they choose one by local rank); GPUs that are not
    certain; reports that show no work on any GPU; strategies other than horovod.
    """
    if results.job.strategy != _HOROVOD or _shows_no_device_work(results):
        return
    sharing: dict[tuple[str, str], list[RankInfo]] = {}
    for info in results.ranks:
        if info.gpus is not None and len(info.gpus) == 1 and info.gpus[0].uuid:
            sharing.setdefault((info.node, info.gpus[0].uuid), []).append(info)
    for (node, uuid), infos in sorted(sharing.items()):
        if len(infos) < 2:
            continue
        gpu = (infos[0].gpus or ())[0]
        called = f"{gpu.name} " if gpu.name else ""
        yield Finding(
            rule="ranks-share-a-gpu",
            level=WARN,
            ranks=tuple(info.rank for info in infos),
            nodes=(node,),
            cause="launch",
            message=f"{ranks(info.rank for info in infos)} (node {node}) see one GPU only, and "
            f"it is the same: {called}({uuid}); if they train on a GPU they share it",
            advice="give each rank a GPU of its own: ask for as many GPUs per node as ranks and "
            "choose by local rank (--gpu-bind=none), or bind one to each task",
        )


def _shows_no_device_work(results: RunResults) -> bool:
    """Whether reports could have shown kernels and show none: a training on the processor."""
    has_report = any(
        source.is_usable
        for info in results.ranks
        for name, source in info.sources.items()
        if name == "nsys"
    )
    return has_report and not results.has_device_activity


def _hung(results: RunResults, hang: HangEpisode) -> Finding:
    after = "before the first step ended" if hang.step is None else f"after step {hang.step}"
    infos = [info for info in results.ranks if info.rank in hang.ranks]
    ended_well = all(info.exit_code == 0 for info in results.ranks)
    goes_on = {
        True: "; the training went on afterwards",
        False: "; the training ended by itself without another step"
        if ended_well
        else ", and none came any more",
        None: "; whether the training went on is not known, as no step was recorded from there on",
    }[hang.went_on]
    suspects = hang.behind or hang.ranks
    return Finding(
        rule="training-hung",
        level=CRITICAL if hang.went_on is False and not ended_well else WARN,
        ranks=suspects,
        nodes=tuple(sorted({info.node for info in results.ranks if info.rank in suspects})),
        steps=None if hang.step is None else (hang.step, hang.step + 1),
        message=f"no step for {duration(hang.seconds * 1e9)} {after} on "
        f"{ranks(info.rank for info in infos)}{goes_on}; {_who(results, hang)}",
        evidence=tuple(_stacks(hang)),
        advice="see there what every thread was doing when the watchdog looked, first on the ranks "
        "named; a long checkpoint, evaluation or compilation looks the same as a hang "
        "(profile.hang_after_s)",
    )


def _who(results: RunResults, hang: HangEpisode) -> str:
    """Which rank was missing, as far as that is known."""
    nodes = sorted({info.node for info in results.ranks if info.rank in hang.behind})
    named = f"{ranks(hang.behind)} (node {', '.join(nodes)})" if hang.behind else ""
    return {
        hangs.RECORDS: f"{named} had not ended step {hang.step} when others had",
        hangs.ARRIVAL: f"{named} came to the next allreduce that much later than the others",
        hangs.ALL_ARRIVED: "all ranks had come to the allreduce: it took that long itself",
        hangs.ALL_LATE: "no rank waited for another: all were that late at the next allreduce",
        hangs.UNKNOWN: "which rank was missing, if any, cannot be told from what was recorded",
    }[hang.told_by]


def _stacks(hang: HangEpisode) -> Iterator[str]:
    """Where the stacks are; those of the ranks that were missing first."""
    order = sorted(hang.with_stacks, key=lambda rank: (rank not in hang.behind, rank))
    # relative to the run folder, wherever that is by now
    files = [ArtifactPaths(".").stacks(rank).as_posix() for rank in order[:_MOST_FILES]]
    left = len(order) - len(files)
    if files:
        yield f"stacks in {', '.join(files)}{f' and of {left} more ranks' if left else ''}"
    without = sorted(set(hang.ranks) - set(hang.with_stacks))
    if without:
        yield (
            f"{ranks(without)} could not say anything (a thread kept Python's lock); the "
            "manifest has what the kernel tells of the threads"
        )
