"""Do the tasks of one srun see each other over MPI? Runs on all nodes together, and last."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcprof.doctor import command, programs
from hpcprof.doctor.registry import RANKS, RANKS_GRACE_SECONDS, RANKS_SECONDS, check
from hpcprof.doctor.row import Row, fail, not_checked, ok, warn
from hpcprof.doctor.subject import Request, Subject

NAME = "MPI"
# nothing here uses a GPU, and Cray MPICH aborts when asked for one by a program without CUDA
_WITHOUT_GPUS = {"OMPI_MCA_opal_cuda_support": "0", "MPICH_GPU_SUPPORT_ENABLED": "0"}
_FROM_RE = re.compile(r"^\[[^\]]*\]\s*")
# what the MPI libraries say when srun and they do not speak the same PMI
_TELLING_RE = re.compile(r"\bpmi|direct launch", re.IGNORECASE)
_HAS = "import importlib.util as u; print([n for n in ('horovod', 'mpi4py') if u.find_spec(n)])"
_AGAIN = "Run hpcprof doctor --srun again: a second import of the packages is often faster."
_ADVICE = (
    "Set slurm.srun.mpi in the site file to the kind that the training's MPI was built for; "
    "srun --mpi=list shows what there is."
)


# one node alone cannot know: the others may be slow
_WAITED = "MPI had not started in time; other nodes may still have been at their checks"


@check(NAME, where=RANKS, lane="mpi", limit_s=RANKS_SECONDS + RANKS_GRACE_SECONDS, instead=_AGAIN)
def world(subject: Subject) -> Iterator[Row]:
    """Does every task see all the others?"""
    tasks = int(subject.environ.get("SLURM_NTASKS", "1"))
    if tasks < 2:
        yield not_checked(NAME, "one task alone proves nothing", "Set nodes: 2 in a job spec.")
        return
    if not subject.python:
        what = "no Python of a training to try it with"
        yield not_checked(NAME, what, subject.naming_advice)
        return
    by = _package(subject.python, subject.environ, subject.request)
    if by is None:
        advice = "Install mpi4py into the training's environment, built with its MPI."
        yield not_checked(NAME, "neither Horovod nor mpi4py in the training's Python", advice)
        return
    argv = [*subject.python, "-c", programs.text_of("world"), by]
    is_late = False
    try:
        environ = {**subject.environ, **_WITHOUT_GPUS}
        seconds = max(0.0, subject.ranks_until - time.monotonic())
        said = command.run(argv, environ, seconds=seconds)
    except command.NoAnswerError as error:
        if not programs.answers(error.printed):
            raise  # it was not even imported: that says nothing about MPI
        said, is_late = command.Said(0, error.printed), True
    found = [answer for answer in programs.answers(said.text) if "size" in answer]
    if is_late and not found:
        yield not_checked(NAME, _WAITED, _AGAIN)
        return
    yield judge(found[0] if found else {}, said, subject.environ, tasks)


def is_waiting(row: Row) -> bool:
    """Whether this node waited for the others in vain."""
    return row.check == NAME and row.found == _WAITED


def judge_waiting(rows: Sequence[Row], nodes: int) -> list[Row]:
    """Rows of nodes that waited in vain: when all of them did, it was for nobody who was late."""
    if len(rows) < nodes:
        return list(rows)
    what = "the start of MPI hangs: all nodes were in it, and none came to its end"
    return [fail(NAME, what, _ADVICE)._replace(node=r.node, position=r.position) for r in rows]


def _package(python: Sequence[str], environ: Mapping[str, str], request: Request) -> str | None:
    """What to ask with: Horovod, if the training uses it, as its MPI is what matters."""
    said = command.run([*python, "-c", _HAS], environ, seconds=8.0)
    if "'horovod'" in said.text and request.strategy != "multiworker":
        return "horovod"
    return "mpi4py" if "'mpi4py'" in said.text else None


def judge(
    found: Mapping[str, Any], said: command.Said, environ: Mapping[str, str], tasks: int
) -> Row:
    """Row out of what this task saw of the world."""
    if not found:
        return fail(NAME, f"MPI could not be started: {reason(said.text)}", _ADVICE)
    size = f"{found['by']}.size() is {found['size']}"
    if found["size"] != tasks:
        return fail(NAME, f"{size} in {tasks} tasks: they do not see each other", _ADVICE)
    rank = environ.get("SLURM_PROCID", "")
    if rank.isdigit() and int(rank) != found["rank"]:
        advice = "Leave --distribution out of srun_extra, so that both number the ranks alike."
        return warn(NAME, f"{size}, but MPI's rank is not SLURM_PROCID", advice)
    return ok(NAME, f"{size}, as many as tasks")


def reason(printed: str) -> str:
    """The line that says most, without host and process id, so that nodes say the same."""
    lines = [_FROM_RE.sub("", line).strip() for line in printed.splitlines()]
    lines = [line for line in lines if line and programs.MARK not in line]
    telling = [line for line in lines if _TELLING_RE.search(line)]
    return (telling or lines or ["it said nothing"])[0 if telling else -1]
