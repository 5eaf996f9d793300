"""Which ranks are late at the collectives, again and again, and what does it cost?

Method (algorithms, section 3, persistent stragglers):
1. lateness of a rank in a step = its arrival minus the baseline of that step. The baseline is the
   median over ranks; with fewer than five ranks, or when arrivals split into two groups, it is the
   median of the faster group, for a median over ranks fails when half of them are slow.
2. e = median over steps; its standard error is the larger of 1.2533 sigma / sqrt(K) and the spread
   of block medians, which does not believe that neighbouring steps are independent.
3. a node is judged like a rank, with the arrival of its latest rank: ranks of a slow node are often
   late in turn. It is named when each of its ranks is late; then its ranks are left out below.
4. late for good: e / noise > 5, and late in most blocks of steps. With five or more ranks the noise
   includes the spread of e over the ranks; with a split, the gap between the groups must be
   well above the spread inside the faster one.
5. cost: Shapley share of the delay that all ranks share (blame.py), over the step time.

Assumes that ranks wait for each other in every step. Says nothing about ranks that are late now
and then (episodic): the delay they cause is not counted to anybody here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcprof.analyses.blame import blame
from hpcprof.analyses.busy_steps import why_too_few
from hpcprof.analyses.resampling import BLOCKS, block_draws, block_medians
from hpcprof.analyses.step_matrix import Matrix, StepMatrix
from hpcprof.trace.model import RankInfo

Vector = npt.NDArray[np.float64]

MIN_SHARE_OF_RANKS = 0.5
FEW_RANKS = 5  # below this the median absolute deviation over ranks means nothing
MIN_SIGNAL_TO_NOISE = 5.0
MIN_GAP_TO_SPREAD = 3.0
# with few ranks one that is faster than the rest (its neighbour on the same core being slow) makes
# the faster group wide; lateness and noise are tested besides
MIN_GAP_TO_SPREAD_OF_FEW = 1.5
MIN_LATE_FRAC = 0.02  # of the step: below it nobody would act
MIN_SHARE_OF_BLOCKS = 0.75
MAD_TO_SIGMA = 1.4826  # for a normal distribution
MEDIAN_SE = 1.2533  # standard error of a median over that of a mean

RANK, NODE, GROUP, PAIR = "rank", "node", "group", "pair"


@dataclass(frozen=True)
class Straggler:
    """One rank or group of ranks that the others wait for.

    ``scope``: ``rank``; ``node`` when it is all ranks of one node and other nodes exist; ``group``
    for the slower of two groups; ``pair`` when there are two ranks in all, and "slower than the
    other" is all that can be said. ``late_ns`` is the lateness of the latest member; for a node or
    group against the latest of another node or of the other group.
    Fractions are of the step time; intervals are 95 %.
    """

    scope: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    late_ns: float
    late_frac: float
    late_frac_ci: tuple[float, float]
    late_steps_frac: float
    impact_frac: float
    impact_frac_ci: tuple[float, float]


@dataclass(frozen=True)
class Stragglers:
    """All stragglers of a job, costliest first.

    ``status`` is ``ok`` or ``insufficient`` with a ``reason``. ``baseline_ranks`` are those that
    nobody waits for. ``lateness_ns``: rank → e. ``spread_frac``: largest |e| among the baseline
    ranks, over the step time; nan when not computed.
    """

    status: str
    reason: str
    found: tuple[Straggler, ...]
    baseline_ranks: tuple[int, ...]
    lateness_ns: Mapping[int, float]
    spread_frac: float
    steps_used: int


def are_connected(infos: Collection[RankInfo]) -> bool:
    """Whether the ranks wait for each other, as far as Horovod tells; without its word they do."""
    expected = max((info.world_size for info in infos), default=0)
    sizes = [info.horovod_size for info in infos if info.horovod_size is not None]
    return all(size >= expected for size in sizes)


def stragglers(
    matrix: StepMatrix, node_of: Mapping[int, str], *, connected: bool = True
) -> Stragglers:
    """Find persistent stragglers. ``node_of``: rank → short host name.

    ``connected``: see ``are_connected``; a rank that nobody waits for is no straggler.
    """
    reason = _why_not(matrix) if connected else "Horovod does not connect the ranks to one job"
    if reason:
        return Stragglers("insufficient", reason, (), (), {}, float("nan"), len(matrix.steps))
    arrival, step_ns = matrix.arrival, matrix.median_step_ns
    bundles = _late_nodes(matrix, node_of)
    rest = [i for i in range(len(matrix.ranks)) if all(i not in node for node in bundles)]
    slow = [rest[i] for i in _slow_columns(arrival[:, rest], step_ns)]
    fast = [i for i in rest if i not in slow]
    lateness = arrival - np.median(arrival[:, fast], axis=1, keepdims=True)
    scopes = [(NODE, members) for members in bundles] + _scopes(slow, len(matrix.ranks))
    found = [
        _describe(matrix, lateness, scope, members, fast, node_of) for scope, members in scopes
    ]
    e = np.median(lateness, axis=0)
    return Stragglers(
        status="ok",
        reason="",
        found=tuple(sorted(found, key=lambda s: -s.impact_frac)),
        baseline_ranks=tuple(matrix.ranks[i] for i in fast),
        lateness_ns={rank: float(e[i]) for i, rank in enumerate(matrix.ranks)},
        spread_frac=float(np.max(np.abs(e[fast])) / step_ns),
        steps_used=len(matrix.steps),
    )


def _why_not(matrix: StepMatrix) -> str:
    if len(matrix.ranks) < 2:
        return f"{len(matrix.ranks)} of {matrix.expected} ranks recorded comparable steps"
    too_few = why_too_few(matrix.busy, len(matrix.steps))
    if too_few:
        return too_few
    if len(matrix.ranks) < MIN_SHARE_OF_RANKS * matrix.expected:
        return f"only {len(matrix.ranks)} of {matrix.expected} ranks can be compared"
    return ""


def _late_nodes(matrix: StepMatrix, node_of: Mapping[int, str]) -> list[list[int]]:
    """Columns of the ranks of each node that is late as a whole; nodes of one rank are left out."""
    arrival, step_ns = matrix.arrival, matrix.median_step_ns
    columns: dict[str, list[int]] = {}
    for i, rank in enumerate(matrix.ranks):
        columns.setdefault(node_of[rank], []).append(i)
    members = list(columns.values())
    if len(members) < 2 or len(members) == len(matrix.ranks):
        return []
    latest = np.column_stack([arrival[:, node].max(axis=1) for node in members])
    slow = _slow_columns(latest, step_ns)
    others = [i for number, node in enumerate(members) if number not in slow for i in node]
    e = np.median(arrival - np.median(arrival[:, others], axis=1, keepdims=True), axis=0)
    candidates = [members[number] for number in slow if len(members[number]) > 1]
    return [node for node in candidates if (e[node] >= MIN_LATE_FRAC * step_ns).all()]


def _slow_columns(arrival: Matrix, step_ns: float) -> list[int]:
    """Numbers of the columns (ranks or nodes) that are late for good."""
    count = arrival.shape[1]
    if count < 2:
        return []
    split = _split(arrival)
    if count >= FEW_RANKS and not split:
        lateness = arrival - np.median(arrival, axis=1, keepdims=True)
        e = np.median(lateness, axis=0)
        across_ranks = MAD_TO_SIGMA * np.median(np.abs(e - np.median(e)))
        noise = np.hypot(across_ranks, standard_error(lateness))
        return _persistent(lateness, noise, step_ns, range(count))
    fast = [i for i in range(count) if i not in split]
    lateness = arrival - np.median(arrival[:, fast], axis=1, keepdims=True)
    return _persistent(lateness, standard_error(lateness), step_ns, split)


def _split(arrival: Matrix) -> list[int]:
    """Columns of the slower of two clearly separate groups; [] when there is one group.

    The cut is the widest gap between sorted medians that leaves groups of allowed size: each a
    third of the ranks, or, with few ranks, at least half of them in the faster group.
    """
    e = np.median(arrival, axis=0)
    count = e.size
    order = np.argsort(e)
    smallest_fast = -(-count // 2) if count < FEW_RANKS else -(-count // 3)
    largest_fast = count - 1 if count < FEW_RANKS else count - -(-count // 3)
    cuts = range(smallest_fast, largest_fast + 1)
    gaps = [e[order[cut]] - e[order[cut - 1]] for cut in cuts]
    cut = cuts[int(np.argmax(gaps))]
    fast, slow = order[:cut], order[cut:]
    spread = e[fast].max() - e[fast].min()
    ratio = MIN_GAP_TO_SPREAD_OF_FEW
    if count >= FEW_RANKS:
        spread = max(spread, e[slow].max() - e[slow].min())
        ratio = MIN_GAP_TO_SPREAD
    return sorted(int(i) for i in slow) if max(gaps) > ratio * spread else []


def standard_error(lateness: Matrix) -> Vector:
    """Standard error of each rank's median lateness [rank], in ns."""
    steps = lateness.shape[0]
    deviation = np.abs(lateness - np.median(lateness, axis=0))
    independent = MEDIAN_SE * MAD_TO_SIGMA * np.median(deviation, axis=0) / np.sqrt(steps)
    blocks = block_medians(lateness)
    if len(blocks) < BLOCKS:  # too short to see how slowly the noise changes
        return np.asarray(independent)
    return np.asarray(np.maximum(independent, blocks.std(axis=0, ddof=1) / np.sqrt(len(blocks))))


def _persistent(
    lateness: Matrix, noise: Vector, step_ns: float, candidates: range | list[int]
) -> list[int]:
    e = np.median(lateness, axis=0)
    late_blocks = (block_medians(lateness) >= e / 2).mean(axis=0)
    return [
        i
        for i in candidates
        if e[i] > MIN_SIGNAL_TO_NOISE * noise[i]
        and e[i] >= MIN_LATE_FRAC * step_ns
        and late_blocks[i] >= MIN_SHARE_OF_BLOCKS
    ]


def _scopes(slow: list[int], rank_count: int) -> list[tuple[str, list[int]]]:
    """Slow ranks that belong to no slow node: one by one, or together when they are many."""
    if rank_count == 2:
        return [(PAIR, slow)] if slow else []
    if len(slow) > 1 and 3 * len(slow) >= rank_count:
        return [(GROUP, slow)]
    return [(RANK, [i]) for i in slow]


def _describe(
    matrix: StepMatrix,
    lateness: Matrix,
    scope: str,
    members: list[int],
    fast: list[int],
    node_of: Mapping[int, str],
) -> Straggler:
    step_ns = np.median(matrix.step_time, axis=1)
    # the others wait for the latest member. The latest of several is later than their typical one
    # in a healthy run too, so it is compared with the latest of as many others
    late = lateness[:, members].max(axis=1)
    if scope == GROUP:
        late = late - lateness[:, fast].max(axis=1)
    elif scope == NODE:
        late = late - _latest_of_a_node(lateness, fast, [node_of[rank] for rank in matrix.ranks])
    cost = blame(lateness)[:, members].sum(axis=1)
    draws = block_draws(len(step_ns))
    late_draws = np.median(late[draws], axis=1) / np.median(step_ns[draws], axis=1)
    impact_draws = cost[draws].sum(axis=1) / step_ns[draws].sum(axis=1)
    ranks = tuple(matrix.ranks[i] for i in members)
    return Straggler(
        scope=scope,
        ranks=ranks,
        nodes=tuple(sorted({node_of[rank] for rank in ranks})),
        late_ns=float(np.median(late)),
        late_frac=float(np.median(late) / np.median(step_ns)),
        late_frac_ci=_interval(late_draws),
        late_steps_frac=float((late >= MIN_LATE_FRAC * step_ns).mean()),
        impact_frac=float(cost.sum() / step_ns.sum()),
        impact_frac_ci=_interval(impact_draws),
    )


def _latest_of_a_node(lateness: Matrix, columns: list[int], node_of_column: list[str]) -> Vector:
    """Per step the lateness of the latest rank of a node, for the median of the nodes given."""
    nodes = sorted({node_of_column[i] for i in columns})
    latest = [
        lateness[:, [i for i in columns if node_of_column[i] == node]].max(axis=1) for node in nodes
    ]
    return np.asarray(np.median(np.column_stack(latest), axis=1))


def _interval(draws: Vector) -> tuple[float, float]:
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)
