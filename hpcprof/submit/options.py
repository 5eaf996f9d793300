"""Job spec and site as option lists for sbatch and srun, and as settings for launch.

Lists of words until the template writes them. Later options win in Slurm, so the site comes
before the spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcprof.artifacts.run_record import LAUNCH_DEFAULTS, new_run_record
from hpcprof.artifacts.step_range import StepRange
from hpcprof.config_types import time_limit_s
from hpcprof.errors import UsageError
from hpcprof.job_spec import JobSpec
from hpcprof.site_config import Site
from hpcprof.submit.containers import SCRATCH_INSIDE
from hpcprof.submit.extras import check_sbatch, check_srun, directive, has_signal
from hpcprof.submit.nsys_extras import check_nsys


def job_directives(spec: JobSpec, site: Site) -> list[str]:
    """Options of the job script's header. Raises UsageError for an option that must not be."""
    return [
        *_site_sbatch_extra(spec, site),
        f"--job-name={spec.name}",
        f"--nodes={spec.nodes}",
        f"--ntasks-per-node={spec.ranks_per_node}",
        f"--cpus-per-task={spec.cpus_per_task}",
        *([f"--gres=gpu:{spec.gpus_per_node}"] if spec.gpus_per_node else []),
        f"--time={spec.time}",
        *_signal(spec, site),
        *([f"--mem={spec.mem}"] if spec.mem else []),
        *_account(spec, site),
        *_partition(spec.partition or site.slurm.default_partition),
        *_checked_sbatch(spec.sbatch_extra, "sbatch_extra of the job spec"),
    ]


def collect_directives(spec: JobSpec, site: Site) -> list[str]:
    """Options of the collect job's header: one task, for the analysis of one run."""
    memory = site.collect.mem_gib
    return [
        f"--job-name={spec.name}-collect",
        "--nodes=1",
        "--ntasks=1",
        f"--time={site.collect.time}",
        *([f"--mem={memory}G"] if memory else []),
        *_account(spec, site),
        *_partition(site.collect.partition or spec.partition or site.slurm.default_partition),
    ]


def srun_options(spec: JobSpec, site: Site) -> list[str]:
    """Options of the srun that starts the ranks. Raises UsageError for one that must not be."""
    srun = site.slurm.srun
    profiled = is_profiled(spec)
    check_srun(srun.extra, f"slurm.srun.extra of site {site.name}", profiled=profiled)
    overlay = site.profile_overlay.srun
    check_srun(overlay, f"profile_overlay.srun of site {site.name}", profiled=profiled)
    check_srun(spec.srun_extra, "srun_extra of the job spec", profiled=profiled)
    return [
        # under "sbatch --export=NONE" srun would keep our variables from the ranks
        "--export=ALL",
        # srun does not take it over from sbatch since Slurm 22.05
        f"--cpus-per-task={spec.cpus_per_task}",
        # for ever: WaitTime of slurm.conf counts from the first rank that has ended, and would end
        # the others while nsys writes their reports
        *(["--wait=0"] if profiled else []),
        *([f"--mpi={srun.mpi}"] if srun.mpi else []),
        *([f"--cpu-bind={srun.cpu_bind}"] if srun.cpu_bind else []),
        *srun.extra,
        *(overlay if profiled else ()),
        *spec.srun_extra,
    ]


def agent_options(spec: JobSpec, site: Site) -> list[str]:
    """Options of the srun that starts the node agent beside the ranks; [] when none is wanted."""
    if spec.profile.agent == "none":
        return []
    mpi = site.slurm.srun.mpi
    return [*_beside_training(spec, "hpcprof-agent"), *([f"--mpi={mpi}"] if mpi else [])]


def flush_options(spec: JobSpec) -> list[str]:
    """Options of the srun that ends the recordings before the time limit; [] when none is wanted.

    ``--mpi=none``: it takes part in no MPI, and must not wait for any.
    """
    return [*_beside_training(spec, "hpcprof-flush"), "--mpi=none"] if flush_s(spec) else []


def flush_s(spec: JobSpec) -> int:
    """Seconds before the time limit at which the recordings are ended, 0 for never.

    At most half of the limit: short jobs are to be recorded, too.
    """
    if not is_profiled(spec):
        return 0
    return min(spec.profile.flush_s, time_limit_s(directive(spec.time)) // 2)


def _beside_training(spec: JobSpec, name: str) -> list[str]:
    """Options of an srun that starts one task per node while the training runs."""
    return [
        "--export=ALL",
        # shares what the training has, takes nothing from it
        "--overlap",
        "--gres=none",
        # all three, or SLURM_NTASKS wins and there is one task for each rank
        f"--nodes={spec.nodes}",
        f"--ntasks={spec.nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        # counts against nobody: before Slurm 22.05 --overlap shared processors only
        "--mem=0",
        # not on the core of the first rank: wherever there is room
        "--cpu-bind=none",
        # a task that fails is no reason to end the others
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--job-name={name}",
    ]


def is_profiled(spec: JobSpec) -> bool:
    """Whether a profiler may run, so that what the site adds for profiling applies."""
    return spec.profile.profiler != "none"


def run_record(
    spec: JobSpec, site: Site, versions: dict[str, str], data_dir: Path | None
) -> dict[str, Any]:
    """What the job writes into ``run.json``. Raises UsageError for a harmful nsys option."""
    steps = spec.profile.steps
    check_nsys(site.nsys.extra, f"nsys.extra of site {site.name}", steps=steps)
    check_nsys(spec.profile.extra, "profile.extra of the job spec", steps=steps)
    record = new_run_record(name=spec.name, strategy=spec.strategy, world_size=spec.world_size)
    record["spec"] = spec.model_dump(mode="json", by_alias=True)
    record["site"] = site.model_dump(mode="json", by_alias=True)
    record["versions"] = versions
    record["launch"].update(
        profiler=spec.profile.profiler,
        nsys_path=site.nsys.path,
        nsys_trace=list(site.nsys.trace if spec.profile.trace is None else spec.profile.trace),
        nsys_extra=[*site.nsys.extra, *spec.profile.extra],
        profile_ranks=spec.profile.ranks,
        profile_steps=steps,
        hooks=spec.profile.hooks,
        recorder=spec.profile.recorder,
        op_steps=_op_steps(spec),
        tf_ranks=spec.profile.tf_ranks,
        tf_steps=spec.profile.tf_steps,
        hang_after_s=spec.profile.hang_after_s,
        agent=spec.profile.agent,
        agent_interval_s=spec.profile.agent_interval_s,
        data_dir=None if data_dir is None else str(data_dir),
    )
    if spec.container is not None and spec.container.runtime == "pyxis":
        # the one folder that launch, inside, and flush, outside, both see under its name
        record["launch"]["scratch"] = SCRATCH_INSIDE
    return record


def _op_steps(spec: JobSpec) -> str:
    """Steps with names of operations: by default some that nsys records, as it hears the names."""
    default = str(LAUNCH_DEFAULTS["op_steps"])
    if spec.profile.op_steps is not None or spec.profile.steps is None:
        return spec.profile.op_steps or default
    wanted = StepRange.from_text(default)
    first, last = StepRange.from_text(spec.profile.steps)
    return str(StepRange(first, min(last, first + wanted.last - wanted.first)))


def _signal(spec: JobSpec, site: Site) -> list[str]:
    """To the batch shell alone: sent to the steps, it would end nsys before its report is there."""
    overlay = site.profile_overlay.sbatch if is_profiled(spec) else ()
    if not flush_s(spec) or has_signal([*site.slurm.sbatch_extra, *overlay, *spec.sbatch_extra]):
        return []
    return [f"--signal=B:USR1@{flush_s(spec)}"]


def _site_sbatch_extra(spec: JobSpec, site: Site) -> list[str]:
    overlay = site.profile_overlay.sbatch if is_profiled(spec) else ()
    return [
        *_checked_sbatch(site.slurm.sbatch_extra, f"slurm.sbatch_extra of site {site.name}"),
        *_checked_sbatch(overlay, f"profile_overlay.sbatch of site {site.name}"),
    ]


def _checked_sbatch(options: Sequence[str], field: str) -> Sequence[str]:
    check_sbatch(options, field)
    return options


def _account(spec: JobSpec, site: Site) -> list[str]:
    if spec.account:
        return [f"--account={spec.account}"]
    if site.slurm.account_required:
        raise UsageError(
            f"site {site.name} charges every job to an account. "
            "Write account: NAME in the job spec; sacctmgr show associations lists yours."
        )
    return []


def _partition(name: str | None) -> list[str]:
    return [f"--partition={name}"] if name else []
