"""The judge of the accuracy trials must itself be right."""

from __future__ import annotations

import pytest

from tests.accuracy.outcome import accusations, outcome
from tests.accuracy.plan import SESSIONS, Trial

pytestmark = pytest.mark.unit

SLOW_NODE = Trial("slow files", (2, 3), ("node1",))
SLOW_LINK = Trial("slow network", (), ("node2",))


def finding(ranks=(2, 3), nodes=("node1",), cause="input", **more):
    return {
        **{"rule": "rank-arrives-late", "level": "critical", "status": "ok", "phase": "input"},
        **{"ranks": list(ranks), "nodes": list(nodes), "cause": cause},
        **more,
    }


@pytest.mark.parametrize(
    ("trial", "findings", "expected"),
    [
        (Trial("healthy"), [], "quiet"),
        (Trial("healthy"), [finding(level="info")], "quiet"),
        (Trial("healthy"), [finding(rule="job-ended-early")], "quiet"),
        (Trial("healthy"), [finding()], "wrong accusation"),
        (SLOW_NODE, [finding()], "named"),
        (SLOW_NODE, [finding(ranks=[2]), finding(ranks=[3])], "named"),
        (SLOW_NODE, [finding(ranks=[2])], "incomplete"),
        (SLOW_NODE, [], "missed"),
        (SLOW_NODE, [finding(cause="compute")], "wrong accusation"),
        (SLOW_NODE, [finding(), finding(ranks=[0], nodes=["node0"])], "wrong accusation"),
        (SLOW_LINK, [finding((), ["node2"], "interconnect", rule="node-link-slow")], "named"),
        (SLOW_LINK, [finding((), ["node1"], "interconnect", rule="node-link-slow")], None),
        (SLOW_LINK, [finding([2], ["node2"], "interconnect")], "wrong accusation"),
        (SLOW_LINK, [finding([2], ["node2"], "compute")], "wrong accusation"),
    ],
)
def test_outcome_of_a_trial(trial, findings, expected):
    assert outcome(trial, accusations(findings)) == (expected or "wrong accusation")


def test_the_plan_has_thirty_trials_of_every_kind():
    trials = [trial for session in SESSIONS for trial in session.trials]
    assert len(trials) == 30
    assert {trial.fault for trial in trials} == {
        *("healthy", "slow rank", "slow node", "slow files", "slow network")
    }
    assert len({session.name for session in SESSIONS}) == len(SESSIONS)
