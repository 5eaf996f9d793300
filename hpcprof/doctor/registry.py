"""The list of checks. A check is a generator of rows that asks one question of one place.

Its docstring's first line is the question. Whatever it raises becomes a NOT CHECKED row, so a
check is written without fear; what may hang needs no thread either: each runs in its own child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpcprof.doctor.row import Row
from hpcprof.doctor.subject import Subject

LOGIN = "login"  # where jobs are submitted from
NODE = "node"  # where the training runs; on a workstation that is the same machine
RANKS = "ranks"  # on the nodes, together and last, as it may take the job step with it

# both count from the start of a node's part. The first is when its own checks end at the latest,
# its environment included; the second is until when those of all nodes wait for each other. There
# is no common start: who is ready at once must wait for who needs all of its time
NODE_SECONDS = 55.0
RANKS_SECONDS = NODE_SECONDS + 30.0
RANKS_GRACE_SECONDS = 10.0  # to end what still waits then, and to say so

Function = Callable[[Subject], Iterator[Row]]


class Check(NamedTuple):
    """``name`` stands in the table when the check gives no row of its own.

    Checks of one ``lane`` run one after the other, lanes beside each other. ``limit_s`` is how
    long one may take, ``instead`` what to do when it gave no answer.
    """

    name: str
    question: str
    where: str
    lane: str
    limit_s: float
    instead: str
    function: Function


CHECKS: list[Check] = []
_AGAIN = "Run hpcprof doctor again; if it stays so, the machine is overloaded or a disk hangs."


def check(
    name: str, *, where: str, lane: str, limit_s: float = 10.0, instead: str = _AGAIN
) -> Callable[[Function], Function]:
    """Register a generator of rows, in the order of the table."""

    def register(function: Function) -> Function:
        question = (function.__doc__ or "").strip().splitlines()[0]
        CHECKS.append(Check(name, question, where, lane, limit_s, instead, function))
        return function

    return register
