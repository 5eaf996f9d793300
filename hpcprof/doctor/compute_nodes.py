"""Runs the node part on compute nodes through one srun, and brings their rows back.

Each row comes as a line of its own as soon as it is known: what hangs on one node, or takes the
whole job step with it, costs no row that was there before. slurmd keeps lines whole only up to
1024 bytes, so a node's rows never travel as one.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from hpcprof.doctor import command, mpi
from hpcprof.doctor.registry import RANKS_GRACE_SECONDS, RANKS_SECONDS
from hpcprof.doctor.row import Row, fail, not_checked, ok
from hpcprof.doctor.subject import VARIABLE, Request

NAME = "srun"
MARK = "HPCPROF-DOCTOR "
END = "end"  # the check's name of a node's last line; its text is the node's SLURM_PROCID
# what srun needs around the node part
_SRUN_SECONDS = 10.0
_TERM_SECONDS = 3.0
_BY_HAND = "Try by hand: srun --nodes=2 --ntasks-per-node=1 hostname, with the options of the site."


def limit_s(request: Request) -> float:
    """How long all of it may take."""
    return request.wait_s + RANKS_SECONDS + RANKS_GRACE_SECONDS + _SRUN_SECONDS


def rows(request: Request, environ: Mapping[str, str]) -> Iterator[Row]:
    """Does srun start tasks on these nodes, and what do they find? Rows of nodes name theirs."""
    if command.find("srun", environ) is None:
        advice = "Run hpcprof doctor --srun on a login node of the cluster."
        yield not_checked(NAME, "srun is not on PATH", advice)
        return
    heard: set[str] = set()
    waiting: list[Row] = []
    ended: dict[str, str] = {}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            _argv(request),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**environ, VARIABLE: request.to_json()},
        )
        for line in _lines(process, time.monotonic() + limit_s(request)):
            row = _row(line)
            if row is not None and row.check == END:
                ended[row.node] = row.found
            elif row is not None and mpi.is_waiting(row):
                waiting.append(row)
            elif row is not None:
                heard.add(row.node)
                yield row
        in_time = process.poll() is not None
        code = _end(process)
        errors.seek(0)
        said = command.Said(code, errors.read().decode("utf-8", "replace"))
    yield from mpi.judge_waiting(waiting, request.nodes)
    if not heard and not in_time:
        advice = "Look with squeue --me whether the nodes were given; then --wait 600, or salloc."
        what = f"nothing was heard of a node in {limit_s(request):.0f} s"
        yield not_checked(NAME, what, advice)
    else:
        yield judge(ended, said, request, in_time=in_time)


def _argv(request: Request) -> list[str]:
    nodes = request.nodes
    return [
        "srun",
        *request.srun,
        f"--nodes={nodes}",
        # all three, or SLURM_NTASKS of an allocation wins
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--time=3",
        f"--immediate={request.wait_s}",
        "--job-name=hpcprof-doctor",
        request.interpreter,
        "-I",
        "-m",
        "hpcprof.doctor",
    ]


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """Lines of its stdout as they come, up to the end or the deadline."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    unread = b""
    while (seconds := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([descriptor], [], [], seconds)
        data = os.read(descriptor, 65536) if readable else b""
        *lines, unread = (unread + data).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
        if readable and not data:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TERM_SECONDS)
            return


def _row(line: str) -> Row | None:
    """The row in a line; None where a module or a library printed it."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        return Row.from_line(text)
    except ValueError:
        return None


def _end(process: subprocess.Popen[bytes]) -> int:
    """End an srun that is still there: TERM lets it end its tasks and give the nodes back."""
    for end in (process.terminate, process.kill):
        if process.poll() is None:
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TERM_SECONDS)
    code = process.poll()
    return 128 + 9 if code is None else (code if code >= 0 else 128 - code)


def judge(ended: Mapping[str, str], said: command.Said, request: Request, *, in_time: bool) -> Row:
    """Row about srun itself. ``ended``: node and SLURM_PROCID of the tasks that finished."""
    wanted = request.nodes
    tasks = "1 task on 1 node" if wanted == 1 else f"{wanted} tasks on {wanted} nodes"
    if not in_time:
        what = f"not ended after {limit_s(request):.0f} s; {len(ended)} of {wanted} nodes answered"
        return fail(NAME, what, _BY_HAND)
    if not ended and "Unable to allocate resources" in said.text:
        advice = "Wait longer (--wait 600), or run hpcprof doctor --srun inside salloc."
        return not_checked(NAME, f"no nodes within {request.wait_s} s: {said.last_line}", advice)
    if not ended:
        return fail(NAME, f"no node answered: {said.last_line}", _BY_HAND)
    if len(ended) < wanted:
        names = ", ".join(sorted(ended))
        what = f"only {len(ended)} of {wanted} nodes finished ({names}): {said.last_line}"
        return fail(NAME, what, "Look at the other nodes by hand: srun --nodelist=NAME hostname")
    if sorted(ended.values()) != sorted(map(str, range(wanted))):
        advice = (
            "Start the training with srun itself, not with mpirun, and tell the administrators."
        )
        return fail(NAME, f"tasks do not see a SLURM_PROCID each: {_listed(ended)}", advice)
    return ok(NAME, f"{tasks}, each with its SLURM_PROCID")


def _listed(ended: Mapping[str, Any]) -> str:
    return ", ".join(f"{node}: {rank or 'none'}" for node, rank in sorted(ended.items()))
