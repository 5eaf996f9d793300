"""How fast does each node read the data set, and is one of them slower than the others?

From the test reads that the node agents made beside the training:
1. time of a test read = opening the file + reading it. One that has not come back counts once, with
   the age at which it was last seen: it takes at least that long. When it comes back its times
   replace the age; when it fails the age stays, for it held its reader that long.
2. a node's time is the median over its test reads.
3. slow: at least 5 times the median over the other nodes, and at least 2 ms more than that. A node
   with fewer than 3 test reads is neither judged nor compared with.

Assumes that the agent drops what it is about to read from the node's page cache, so that cached
data does not hide a slow file system; the cache of a server may hide one all the same. A test read
goes through what the training's reads go through: a rank that reads much more than its neighbours,
or a node without a free core, makes it slow too. Says nothing when all nodes are equally slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hpcprof.trace import columns as c

RANK = "rank"
# names of the agent's counters (artifacts.node_records)
OPEN_NS, READ_NS = "canary_open_ns", "canary_read_ns"
PENDING_NS, ERRORS = "canary_pending_ns", "canary_errors"
COUNTERS = (OPEN_NS, READ_NS, PENDING_NS, ERRORS)

# chosen, with room: the same file server gives nodes different times by their place in its queue
SLOW_TIMES = 5.0
# a page-cache hit takes µs, and one may take several times another without meaning anything
SLOW_MORE_NS = 2e6
# up to here nodes count as alike; in between nothing is concluded. A rank may read hundreds of
# files per step, so that what is too little to accuse a node may still make it late
ALIKE_TIMES = 2.0
# of fewer a single odd one is the median
MIN_READS = 3
HIGH_QUANTILE = 0.9

NAN = float("nan")


@dataclass(frozen=True)
class ReadTimes:
    """Test reads of one node, or of several nodes together.

    ``count`` of those with a time; ``median_ns`` and ``high_ns`` (9 of 10 take less; of several
    nodes the worst one's) are nan when there is none. ``errors``: test reads that failed.
    """

    count: int = 0
    median_ns: float = NAN
    high_ns: float = NAN
    errors: int = 0


@dataclass(frozen=True)
class NodeReads:
    """Test reads by node; a node without any is absent, and all are where none can be compared.

    ``slow``: nodes that read much slower than the others. Not being in it means nothing for a node
    with fewer than ``MIN_READS``.
    """

    nodes: Mapping[str, ReadTimes] = field(default_factory=dict)
    slow: tuple[str, ...] = ()

    def on(self, names: Iterable[str]) -> ReadTimes:
        """Of the nodes named: counts added up, and the median over the nodes of their times.

        Times and counts are of nodes with enough test reads only; errors are of all.
        """
        chosen = [self.nodes[name] for name in sorted(set(names)) if name in self.nodes]
        enough = [reads for reads in chosen if reads.count >= MIN_READS]
        return ReadTimes(
            count=sum(reads.count for reads in enough),
            median_ns=float(np.median([r.median_ns for r in enough])) if enough else NAN,
            high_ns=max((r.high_ns for r in enough), default=NAN),
            errors=sum(reads.errors for reads in chosen),
        )

    def beside(self, names: Iterable[str]) -> ReadTimes:
        """The same of all other nodes."""
        return self.on(set(self.nodes) - set(names))


def node_reads(samples: Mapping[str, pd.DataFrame]) -> NodeReads:
    """Test reads in the samples of each node (``readers.agent_files.read_samples``).

    Of one node nothing can be compared: empty, as without samples or test reads.
    """
    if len(samples) < 2:
        return NodeReads()
    times = {node: _read_times(frame) for node, frame in samples.items()}
    known = {node: found for node, found in sorted(times.items()) if found.count or found.errors}
    reads = NodeReads(known)
    slow = (n for n in known if _is_slow(reads.on([n]).median_ns, reads.beside([n]).median_ns))
    return NodeReads(known, tuple(slow))


def are_alike(own: ReadTimes, others: ReadTimes) -> bool:
    """Whether files can be opened and read on ``own`` as fast as on ``others``, nearly every time.

    That none is slow does not say so, nor do nodes without test reads: those are not alike.
    """
    often = own.median_ns <= ALIKE_TIMES * others.median_ns
    return often and not _is_slow(own.high_ns, others.median_ns) and not own.errors


def _is_slow(own_ns: float, others_ns: float) -> bool:
    """False also when one of them is nan."""
    return own_ns >= SLOW_TIMES * others_ns and own_ns - others_ns >= SLOW_MORE_NS


def _read_times(frame: pd.DataFrame) -> ReadTimes:
    if not len(frame):
        return ReadTimes()
    rows = frame[frame[RANK].isna() & frame[c.NAME].isin(COUNTERS)]
    by_sample: dict[int, dict[str, float]] = {}
    for time, name, value in zip(rows[c.TIME_NS], rows[c.NAME], rows[c.VALUE], strict=True):
        by_sample.setdefault(int(time), {})[str(name)] = float(value)
    looks = [by_sample[time] for time in sorted(by_sample)]
    times = list(_durations(looks))
    return ReadTimes(
        count=len(times),
        median_ns=float(np.median(times)) if times else NAN,
        high_ns=float(np.quantile(times, HIGH_QUANTILE)) if times else NAN,
        errors=_failed(looks),
    )


def _durations(looks: Iterable[Mapping[str, float]]) -> Iterator[float]:
    """Time of each test read (ns), from what the agent saw at each sample with any of COUNTERS."""
    age = None  # of a test read that has not come back
    for look in looks:
        now = look.get(PENDING_NS)
        came_back = OPEN_NS in look
        if age is not None and not came_back and (now is None or now < age):
            yield age  # it failed, or another one is waited for by now
        if READ_NS in look and came_back:  # an empty file is opened and not read
            yield look[OPEN_NS] + look[READ_NS]
        age = now
    if age is not None:
        yield age


def _failed(looks: Iterable[Mapping[str, float]]) -> int:
    """Test reads that failed: they came back without times, and the agent's count went up.

    The count itself may have begun before the samples given, and begins again with each agent.
    """
    failed, before = 0, NAN
    for look in looks:
        errors = look.get(ERRORS, before)
        failed += errors != before and ERRORS in look and OPEN_NS not in look
        before = errors
    return failed
