"""Is Slurm here, does it answer, and do its settings fit the site file?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from hpcprof.doctor import command
from hpcprof.doctor.registry import LOGIN, check
from hpcprof.doctor.row import Row, fail, not_checked, ok, warn
from hpcprof.doctor.subject import Request, Subject

_SECONDS = 8.0
_SETTING_RE = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)
_PING_RE = re.compile(r"^Slurmctld\(([^)]*)\) at (\S+) is (UP|DOWN)", re.MULTILINE)
_NO_SLURM = "Run hpcprof doctor on a login node of the cluster; local runs need no Slurm."


@check("Slurm", where=LOGIN, lane="slurm", limit_s=30.0)
def slurm(subject: Subject) -> Iterator[Row]:
    """Are Slurm's commands here, does the controller answer, do its settings fit the site file?"""
    wanted = ("sbatch", "srun", "scontrol", "sacct")
    missing = [name for name in wanted if command.find(name, os.environ) is None]
    first = next((name for name in ("sbatch", "srun") if name not in missing), None)
    if first is None:
        yield not_checked("Slurm", "its commands are not on PATH", _NO_SLURM)
        return
    said = command.run([first, "--version"], os.environ, seconds=_SECONDS)
    yield judge_commands(missing, said)
    if said.code or "scontrol" in missing:
        return
    yield judge_ping(command.run(["scontrol", "ping"], os.environ, seconds=_SECONDS))
    yield from _settings(subject.request, has_srun="srun" not in missing)


def judge_commands(missing: Sequence[str], version: command.Said) -> Row:
    """Row about the commands; ``version`` is what sbatch --version said."""
    if version.code:
        return fail(
            "Slurm",
            f"its commands find no cluster: {version.last_line}",
            "Run this on a login node, or ask where slurm.conf is and set SLURM_CONF.",
        )
    if set(missing) - {"sacct"}:
        advice = "Ask the administrators to install them here, or use another login node."
        return fail("Slurm", f"{', '.join(missing)} not on PATH", advice)
    if missing:
        advice = "Nothing needs it, but the report will not say how Slurm saw the job end."
        return warn("Slurm", f"{version.last_line}; sacct is not on PATH", advice)
    return ok("Slurm", version.last_line)


def judge_ping(said: command.Said) -> Row:
    """Row out of what scontrol ping said."""
    found = _PING_RE.findall(said.text)
    if not found:
        advice = "Try scontrol ping by hand; without a controller no job can be submitted."
        return fail("controller", f"scontrol ping said: {said.last_line}", advice)
    up = [host for _, host, state in found if state == "UP"]
    if not up:
        advice = "Wait and try scontrol ping again, then tell the administrators."
        return fail("controller", "no controller is up", advice)
    return ok("controller", f"up at {up[0]}")


def _settings(request: Request, *, has_srun: bool) -> Iterator[Row]:
    said = command.run(["scontrol", "show", "config"], os.environ, seconds=_SECONDS)
    found = dict(_SETTING_RE.findall(said.text))
    if said.code or not found:
        advice = "Try scontrol show config by hand."
        yield not_checked("Slurm settings", f"scontrol show config: {said.last_line}", advice)
        return
    yield from judge_kill_wait(found, request)
    yield judge_accounting(found)
    if has_srun:
        types = command.run(["srun", "--mpi=list"], os.environ, seconds=_SECONDS)
        yield judge_mpi(found.get("MpiDefault", ""), mpi_types(types.text), request)


def judge_kill_wait(found: Mapping[str, str], request: Request) -> Iterator[Row]:
    """Row about the time between SIGTERM and SIGKILL at a time limit."""
    words = found.get("KillWait", "").split()
    if not words or not words[0].isdigit() or request.kill_wait_s is None:
        return
    if int(words[0]) == request.kill_wait_s:
        yield ok("KillWait", f"{words[0]} s, as the site file says")
        return
    yield warn(
        "KillWait",
        f"{words[0]} s, but the site file {request.site} says {request.kill_wait_s} s",
        f"Write kill_wait_s: {words[0]} under slurm: in a site file of yours.",
    )


def judge_accounting(found: Mapping[str, str]) -> Row:
    """Row about sacct having something to tell."""
    kind = found.get("AccountingStorageType", "").rpartition("/")[2]
    if kind in ("", "none", "(null)"):
        return warn(
            "accounting",
            "off (accounting_storage/none)",
            "Nothing to do; reports will not say that a time limit or scancel ended a job.",
        )
    return ok("accounting", f"on ({kind})")


def mpi_types(printed: str) -> list[str]:
    """What srun --mpi=list offers; versions print it with and without "srun:"."""
    _, _, listed = printed.replace("srun:", " ").partition("types are")
    words = re.split(r"[\s,.]+", listed.replace("specific pmix plugin versions available:", " "))
    return list(dict.fromkeys(word for word in words if re.fullmatch(r"[a-z][a-z0-9_]*", word)))


def judge_mpi(default: str, types: Sequence[str], request: Request) -> Row:
    """Row about the way in which srun tells ranks of each other."""
    wanted = request.mpi or default
    source = "slurm.srun.mpi of the site" if request.mpi else "MpiDefault"
    offered = ", ".join(types)
    if not types:
        advice = "Try srun --mpi=list by hand."
        return not_checked("srun --mpi", "srun --mpi=list named no types", advice)
    if wanted and wanted not in types:
        advice = f"Set slurm.srun.mpi in the site file to one of: {offered}."
        return fail("srun --mpi", f"{wanted} ({source}) is not offered", advice)
    if wanted in ("", "none") and request.strategy == "horovod":
        return fail(
            "srun --mpi",
            f"{source} is none: every Horovod rank would be alone",
            f"Set slurm.srun.mpi in the site file to what Horovod's MPI fits: {offered}.",
        )
    return ok("srun --mpi", f"{wanted or 'none'} ({source}); offered: {offered}")
