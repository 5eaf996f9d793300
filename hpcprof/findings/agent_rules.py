"""Rules about the node agents: what is unknown because they left nothing."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses.run_results import AUTO, NONE, RunResults
from hpcprof.findings.model import NOT_COLLECTED, WARN, Finding
from hpcprof.findings.registry import rule
from hpcprof.units import counted

_MOST_NODES = 8


@rule
def agent_left_no_record(results: RunResults) -> Iterator[Finding]:
    """Agents were asked for and left nothing on some nodes: nobody measured there.

    Fires: agent: auto, and srun could not start the agents' step; one node's agent was killed.
    Stays quiet: every node has records; agent: none; a run that no job script started.
    """
    agents = results.agents
    if agents.setting != AUTO or not agents.absent:
        return
    several = len(results.job.nodes) > 1
    of_them = "their" if len(agents.absent) > 1 else "its"
    lost = "counters and test reads of the data set were not measured"
    if several:
        clocks = "clocks were" if len(agents.absent) > 1 else "clock was"
        lost = f"{clocks} not compared by agents, and links, {lost}"
    quoted = f"nodes/agent.log says: {agents.log_end}" if agents.log_end else ""
    yield Finding(
        rule="agent-left-no-record",
        level=WARN,
        status=NOT_COLLECTED,
        nodes=agents.absent,
        message=f"the node agent left no record on {_listed(agents.absent)}; {of_them} {lost}",
        evidence=(quoted or "nodes/agent.log says nothing",),
        advice=agent_advice(results, ""),
    )


def agent_advice(results: RunResults, without_agent: str, before: str = "") -> str:
    """What to do where an agent would have helped: ``without_agent`` if the job had none.

    "" in a run that cannot have agents. ``before`` is put in front of what is not empty.
    """
    advice = {
        NONE: without_agent,
        AUTO: "see nodes/agent.log in the run folder for what the node agents met",
    }.get(results.agents.setting, "")
    return before + advice if advice else ""


def _listed(nodes: tuple[str, ...]) -> str:
    shown = ", ".join(nodes[:_MOST_NODES])
    left = len(nodes) - _MOST_NODES
    return f"{shown} and {counted(left, 'more node')}" if left > 0 else shown
