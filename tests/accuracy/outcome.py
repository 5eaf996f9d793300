"""What a verdict is worth, given the truth of its trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .plan import CAUSE_OF, Trial

NAMED, QUIET, MISSED, INCOMPLETE, WRONG = (
    *("named", "quiet", "missed"),
    *("incomplete", "wrong accusation"),
)
RIGHT = (NAMED, QUIET)
# rules that accuse somebody; others tell of the recording
ACCUSING = ("rank-arrives-late", "node-link-slow")


def accusations(findings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings (of findings.json) that name somebody at level warn or critical."""
    return [
        {key: finding[key] for key in ("rule", "level", "ranks", "nodes", "cause", "phase")}
        for finding in findings
        if finding["rule"] in ACCUSING
        and finding["status"] == "ok"
        and finding["level"] in ("warn", "critical")
    ]


def outcome(trial: Trial, accused: Sequence[dict[str, Any]]) -> str:
    """One word for the trial.

    ``wrong accusation``: anybody is named who has no fault, or for a wrong reason;
    ``incomplete``: only some of the ranks that have it, with the right cause.
    """
    cause = CAUSE_OF[trial.fault]
    for finding in accused:
        strangers = set(finding["ranks"]) - set(trial.ranks)
        strangers |= set(finding["nodes"]) - set(trial.nodes)
        if finding["cause"] != cause or strangers:
            return WRONG
    if cause is None:
        return QUIET
    if not accused:
        return MISSED
    named = {rank for finding in accused for rank in finding["ranks"]}
    return NAMED if named == set(trial.ranks) else INCOMPLETE
