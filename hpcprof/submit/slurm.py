"""Slurm's commands on the login node: sbatch and scontrol, and what their errors mean.

Does not know what is in a job script.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcprof.errors import EnvironmentLacksError, UsageError

# sbatch itself tries again for a while when the controller is busy
_SBATCH_TIMEOUT_S = 120
_SCONTROL_TIMEOUT_S = 10
# "4711" or "4711;cluster"; sites wrap sbatch and print more lines around it
_JOB_ID_RE = re.compile(r"^([0-9]+)(?:;(\S+))?$", re.MULTILINE)
_CLUSTER_RE = re.compile(r"^ClusterName\s*=\s*(\S+)$", re.MULTILINE)

_UNREACHABLE = ("unable to contact slurm controller", "connection refused", "configuration source")
# what Slurm says (lower-case) and what to do about it
_NEXT_STEPS = {
    "invalid account": "account: must be one that may use this partition; "
    "sacctmgr show associations user=$USER lists yours",
    "invalid partition": "partition: must be one that sinfo -s lists",
    "time limit": "time: must fit the partition's limit, see sinfo -o '%P %l'",
    "node configuration": "no node of the partition has that many tasks, CPUs or GPUs, or so much "
    "memory; see sinfo -N -o '%N %c %m %G' and lower ranks_per_node:, cpus_per_task:, "
    "gpus_per_node: or mem:",
    "generic resource": "gpus_per_node: means --gres=gpu:N, which this cluster spells otherwise; "
    "set it to 0 and write the site's form into sbatch_extra:",
    "memory specification": "mem: is more than a node has, see sinfo -N -o '%N %m'",
    "assocmaxsubmitjoblimit": "account: is missing or its job limit is reached",
    "invalid qos": "give a --qos of yours in sbatch_extra:",
    "option": "sbatch_extra: holds an option that this Slurm does not know",
}


@dataclass(frozen=True)
class JobId:
    """A submitted job; ``cluster`` is "" unless Slurm named one."""

    number: str
    cluster: str = ""


def sbatch(script: str, options: Sequence[str], environ: Mapping[str, str]) -> JobId:
    """Submit ``script`` and return its job.

    Raises EnvironmentLacksError without sbatch or controller, UsageError when Slurm refuses.
    """
    done = _run(["sbatch", "--parsable", *options], script, environ, _SBATCH_TIMEOUT_S)
    if done.returncode:
        raise _refusal(done.stderr.strip() or done.stdout.strip())
    found = _JOB_ID_RE.search(done.stdout)
    if not found:
        raise EnvironmentLacksError(
            f"sbatch reported success but no job id; it printed {done.stdout.strip()!r}. "
            "Look for the job with squeue --me."
        )
    return JobId(found[1], found[2] or "")


def cluster_name(environ: Mapping[str, str]) -> str | None:
    """Name of the cluster this machine belongs to; None when Slurm is not here or is silent."""
    if environ.get("SLURM_CLUSTER_NAME"):
        return environ["SLURM_CLUSTER_NAME"]
    try:
        done = _run(["scontrol", "show", "config"], "", environ, _SCONTROL_TIMEOUT_S)
    except EnvironmentLacksError:
        return None
    found = _CLUSTER_RE.search(done.stdout)
    return found[1] if found else None


def _run(
    command: list[str], text: str, environ: Mapping[str, str], timeout_s: int
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=dict(environ),
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise EnvironmentLacksError(
            f"{command[0]} is not on PATH. Run this on a login node of the cluster; "
            "hpcprof generate makes the job script anywhere."
        ) from None
    except subprocess.TimeoutExpired:
        raise EnvironmentLacksError(
            f"{command[0]} gave no answer within {timeout_s} s; Slurm's controller may be busy. "
            "Look with squeue --me whether the job is there before you try again."
        ) from None


def _refusal(message: str) -> UsageError | EnvironmentLacksError:
    lowered = message.lower()
    if any(words in lowered for words in _UNREACHABLE):
        return EnvironmentLacksError(
            f"Slurm's controller cannot be reached from here. Slurm says: {message}"
        )
    hints = [step for words, step in _NEXT_STEPS.items() if words in lowered]
    hint = f"\nNext step: {hints[0]}." if hints else ""
    return UsageError(f"Slurm refused the job. Slurm says: {message}{hint}")
