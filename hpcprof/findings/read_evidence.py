"""What the agents' test reads of the data set say about a node whose ranks wait for input."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses.node_reads import MIN_READS, ReadTimes, are_alike
from hpcprof.analyses.run_results import RunResults
from hpcprof.units import counted, duration


def read_evidence(results: RunResults, nodes: tuple[str, ...]) -> Iterator[str]:
    """Sentences that compare ``nodes`` with the others of the job; none when there are no others.

    Without test reads the sentence says so.
    """
    others = set(results.job.nodes) - set(nodes)
    if not others:
        return
    here = f"node{'' if len(nodes) == 1 else 's'} {', '.join(nodes)}"
    there = "the other node" if len(others) == 1 else "the other nodes"
    own, beside = results.reads.on(nodes), results.reads.beside(nodes)
    if own.count and beside.count:
        yield _comparison(own, beside, here, there)
    elif results.reads.nodes:
        where = there if own.count else here
        yield f"too few test reads to compare nodes by: fewer than {MIN_READS} on {where}"
    else:
        yield "no test reads to compare nodes by (they need data_dir and the node agent)"
    if own.errors:
        yield f"{counted(own.errors, 'test read')} of the data set failed on {here}"


def _comparison(own: ReadTimes, beside: ReadTimes, here: str, there: str) -> str:
    mine, theirs = duration(own.median_ns), duration(beside.median_ns)
    times = f"{mine} on {here} and" + ("" if mine == theirs else f" {theirs}") + f" on {there}"
    counts = f"({own.count} and {beside.count} reads)"
    verdict = ": not the file system as a whole" if are_alike(own, beside) else ""
    return f"test reads of the data set take {times} {counts}{verdict}"
