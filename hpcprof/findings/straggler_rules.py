"""Rules about ranks that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses import arrivals, causes, stragglers
from hpcprof.analyses.busy_steps import MIN_STEPS
from hpcprof.analyses.causes import Cause
from hpcprof.analyses.run_results import RunResults
from hpcprof.analyses.stragglers import Straggler
from hpcprof.findings.model import INFO, INSUFFICIENT, Finding
from hpcprof.findings.read_evidence import read_evidence
from hpcprof.findings.registry import rule
from hpcprof.findings.step_advice import more_steps
from hpcprof.findings.thresholds import STRAGGLER_INFO_FRAC, straggler_level
from hpcprof.trace.columns import COMPUTE_PHASE
from hpcprof.units import counted, duration, number_list, percent, ranks

_ADVICE = {
    ("input", stragglers.NODE): "compare how fast this node reads the data set with another node; "
    "until it is mended leave it out (sbatch --exclude={nodes}) and tell your admins",
    ("input", stragglers.RANK): "look at this rank's share of the data (file sizes, file system) "
    "and at the cores its input threads may use",
    (causes.COMPUTE, stragglers.NODE): "leave the node out (sbatch --exclude={nodes}) and ask your "
    "admins about its clocks, power limits and other jobs on it",
    (
        causes.COMPUTE,
        stragglers.RANK,
    ): "look for what takes this rank's processor: a second process "
    "on its cores (CPU binding), a CPU quota, a throttled GPU, or a larger batch",
}
# with read-ahead only the slowest rank of a node is late: the others read while it is waited for
_NODE_READS_SLOWLY = (
    _ADVICE["input", stragglers.NODE] + ". Were only this rank replaced, the node's other ranks "
    "would be late next, unless this one reads far more data than they do"
)
_GENERAL_ADVICE = {
    "input": "look at where these ranks read their data and at the cores their input threads use",
    causes.COMPUTE: "look for what takes these ranks' processors: CPU binding, quotas, throttling, "
    "or more work than the others have",
    "copy": "check the PCIe link and NUMA binding of these ranks' GPUs",
    "checkpoint": "checkpoint at the same step on all ranks, or write it in the background",
    "eval": "give every rank the same share of the evaluation",
    "host": "look at Python code that runs only on these ranks: logging, callbacks, summaries, GC",
    causes.UNEXPLAINED: "no single phase explains it; see the table of phases below",
}


@rule
def rank_arrives_late(results: RunResults) -> Iterator[Finding]:
    """A rank, node or group of ranks is late at the collectives in most steps.

    Fires: one of 8 ranks computes 10 % longer in every step, so that 7 wait for it.
    Stays quiet: ranks that are last in turn; lateness below 2 % of the step.
    """
    for straggler, cause in zip(results.stragglers.found, results.causes, strict=True):
        if straggler.late_frac >= STRAGGLER_INFO_FRAC:
            yield _finding(results, straggler, cause)


@rule
def stragglers_not_assessed(results: RunResults) -> Iterator[Finding]:
    """Too little was recorded to say whether any rank is late.

    Fires: fewer than 5 comparable steps; half of the ranks missing; no collectives marked; nsys
    was starting, stopping or writing in more steps than are left, and fewer than 20 are left.
    Stays quiet: whenever ranks could be compared, also when none is late.
    """
    if results.stragglers.status != "ok" and results.job.world_size > 1:
        yield Finding(
            rule="stragglers-not-assessed",
            level=INFO,
            status=INSUFFICIENT,
            message=f"whether a rank is late cannot be said: {results.stragglers.reason}",
            evidence=_why_without(results),
            advice=_what_would_do(results),
        )


def _what_would_do(results: RunResults) -> str:
    if not stragglers.are_connected(results.ranks):
        return "see horovod-size-mismatch: they have to train together first"
    if results.collective_form == arrivals.NONE and results.phase_times.steps:
        return (
            "with Horovod: have its ranges recorded (HOROVOD_WITH_NVTX=1 when it is built); with "
            "tf.distribute: let tf.profiler record some steps of every rank (profile.tf_ranks: "
            'all); or mark what waits for the others as phase("allreduce")'
        )
    without = _without_collectives(results)
    if without:
        return (
            f"have the collectives of {ranks(without)} recorded as those of the other ranks are: "
            "with the same Horovod (built with NVTX) and the same profiler or recorder on every "
            'rank; or mark what waits for the others as phase("allreduce") on all of them'
        )
    return more_steps(results)


def _without_collectives(results: RunResults) -> tuple[int, ...]:
    """Ranks that are not compared although their steps were recorded."""
    if results.busy.are_too_many or not results.phase_times.steps:
        return ()
    sources = {info.rank: info.sources.get("spans") for info in results.ranks}
    return tuple(
        rank
        for rank in results.left_out
        if (spans := sources.get(rank)) is not None
        and spans.last_step is not None
        and spans.last_step >= MIN_STEPS
    )


def _why_without(results: RunResults) -> tuple[str, ...]:
    """What the sources of these ranks say that could have recorded their collectives."""
    concerned = _without_collectives(results)
    others = [info for info in results.ranks if info.rank in results.phase_times.ranks]
    there = {s.name for info in others for s in info.sources.values() if s.is_usable} - {"spans"}
    reasons = {
        f"{source.name}: {source.reason}": None
        for info in results.ranks
        if info.rank in concerned
        for source in info.sources.values()
        if source.name in there and source.reason
    }
    known = (f"steps of {ranks(concerned)} were recorded, collectives were not",)
    return (*known, *reasons) if concerned else ()


def _finding(results: RunResults, straggler: Straggler, cause: Cause) -> Finding:
    steps = results.phase_times.steps
    return Finding(
        rule="rank-arrives-late",
        level=straggler_level(straggler.late_frac, steps),
        ranks=straggler.ranks,
        replicas=tuple((rank, 0) for rank in straggler.ranks),
        nodes=straggler.nodes,
        phase=cause.phase,
        cause=" + ".join(cause.names),
        impact_frac=straggler.impact_frac,
        ci=straggler.impact_frac_ci,
        coverage=cause.coverage,
        message=_message(straggler, cause),
        evidence=tuple(_evidence(results, straggler, cause)),
        advice=_advice(results, straggler, cause),
        next=(
            ("recipe", "input" if "input" in cause.names else "timeline"),
            ("ranks", list(straggler.ranks)),
        ),
    )


def _message(straggler: Straggler, cause: Cause) -> str:
    where = (
        "for no single reason"
        if cause.names == (causes.UNEXPLAINED,)
        else ("in " + " and ".join(_named(cause, name) for name in cause.names))
    )
    late = f"{duration(straggler.late_ns)} late in {percent(straggler.late_steps_frac)} of steps"
    named = f"{ranks(straggler.ranks)} (node {', '.join(straggler.nodes)})"
    if straggler.scope == stragglers.PAIR:
        return (
            f"{named} is slower than the other rank {where}: it reaches the allreduce {late}; "
            "with two ranks only earlier runs could tell which of them is abnormal"
        )
    if straggler.scope == stragglers.NODE:
        count = counted(len(straggler.ranks), "rank")
        return f"node {straggler.nodes[0]} is late {where}: its {count} reach the allreduce {late}"
    if straggler.scope == stragglers.GROUP:
        return f"{named} are the slower group, {where}: they reach the allreduce {late}"
    return f"{named} is late {where}: it reaches the allreduce {late}"


def _named(cause: Cause, name: str) -> str:
    """A cause; "compute (backward)" where operations tell that it is that phase nearly alone."""
    parts = [piece for piece, of in causes.CAUSE_OF_PIECE.items() if of == name]
    whole = sum(cause.excess_ns[piece] for piece in parts)
    is_one = cause.phase in parts and cause.excess_ns[cause.phase] >= causes.NAMED_ALONE * whole
    is_told = bool(cause.named_steps) and cause.phase != COMPUTE_PHASE
    return f"{name} ({cause.phase})" if name == causes.COMPUTE and is_told and is_one else name


def _evidence(results: RunResults, straggler: Straggler, cause: Cause) -> Iterator[str]:
    for piece in sorted(cause.excess_ns, key=lambda p: -cause.excess_ns[p])[:3]:
        if cause.excess_ns[piece] >= 0.1 * straggler.late_ns:
            yield (
                f"{piece} takes {duration(cause.own_ns[piece])} per step there and "
                f"{duration(cause.others_ns[piece])} on the other ranks"
            )
    yield from _told_apart(cause)
    yield (
        f"{percent(cause.coverage)} of the lateness is explained by {', '.join(cause.names)}"
        if (cause.names != (causes.UNEXPLAINED,))
        else f"the largest single cause explains {percent(cause.coverage)}"
    )
    if "input" in cause.names and not results.has_device_activity:
        yield (
            "waiting for input was timed on the host; no device activity was recorded, so where a "
            "device works on meanwhile this is an upper bound"
        )
    if "input" in cause.names:
        yield from read_evidence(results, straggler.nodes)
    yield f"compared over {results.stragglers.steps_used} steps, with no clock shared between ranks"


def _told_apart(cause: Cause) -> Iterator[str]:
    """How the phases inside the call of the training function are known, where they are named."""
    if cause.named_steps:
        steps = f"{counted(len(cause.named_steps), 'step')} ({number_list(cause.named_steps)})"
        yield f"the phases inside the training function are those of {steps} with named operations"
    elif cause.phase == COMPUTE_PHASE:
        yield "compute is the call of the training function; its phases are not known on every rank"


def _advice(results: RunResults, straggler: Straggler, cause: Cause) -> str:
    name, scope = cause.names[0], straggler.scope
    text = _ADVICE.get((name, scope), _GENERAL_ADVICE[name])
    if (name, scope) == ("input", stragglers.RANK) and straggler.nodes[0] in results.reads.slow:
        on_node = [info for info in results.ranks if info.node in straggler.nodes]
        text = _ADVICE[name, stragglers.NODE] if len(on_node) == 1 else _NODE_READS_SLOWLY
    return text.format(nodes=",".join(straggler.nodes))
