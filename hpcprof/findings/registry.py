"""The list of rules and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcprof.analyses.run_results import RunResults
from hpcprof.findings.model import LEVELS, OK, Finding

Rule = Callable[[RunResults], Iterator[Finding]]

RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Register a rule under its name with dashes. A second rule of a name is a programmer error."""
    name = rule_id(function)
    if name in RULES:
        raise ValueError(f"two rules are called {name}")
    RULES[name] = function
    return function


def rule_id(function: Rule) -> str:
    """ "rank_arrives_late" → "rank-arrives-late"."""
    return function.__name__.replace("_", "-")


def find(results: RunResults) -> list[Finding]:
    """Run every rule; what costs most comes first, what could not be measured last."""
    findings = [finding for run in RULES.values() for finding in run(results)]
    return sorted(findings, key=_rank_in_report)


def _rank_in_report(finding: Finding) -> tuple[bool, int, float]:
    return (
        finding.status != OK,
        -LEVELS.index(finding.level),
        -(finding.impact_frac or 0.0),
    )
