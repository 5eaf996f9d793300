"""``Finding``: one judgement, with its cost, its doubt and what to do."""

from __future__ import annotations

from dataclasses import dataclass

INFO, WARN, CRITICAL = "info", "warn", "critical"
LEVELS = (INFO, WARN, CRITICAL)

OK, INSUFFICIENT = "ok", "insufficient"
NOT_RESOLVABLE, NOT_COLLECTED = "not_resolvable", "not_collected"


@dataclass(frozen=True)
class Finding:
    """One entry of findings.json (contract in docs/architecture.md).

    ``message`` is one sentence with a number and a unit; ``evidence`` more of them; ``advice`` is
    what to do now. ``impact_frac`` is the share of the step time it costs, or with
    ``impact_is_limit`` the most that it can cost; ``ci`` its 95 % interval, ``coverage`` the share
    of the effect that ``cause`` explains, ``gpu_hours`` what it cost this job; each None when it
    cannot be said. ``next`` says what would show more.
    """

    rule: str
    level: str
    message: str
    status: str = OK
    ranks: tuple[int, ...] = ()
    replicas: tuple[tuple[int, int], ...] = ()
    nodes: tuple[str, ...] = ()
    steps: tuple[int, int] | None = None
    phase: str | None = None
    cause: str | None = None
    impact_frac: float | None = None
    impact_is_limit: bool = False
    ci: tuple[float, float] | None = None
    gpu_hours: float | None = None
    coverage: float | None = None
    evidence: tuple[str, ...] = ()
    advice: str = ""
    next: tuple[tuple[str, object], ...] = ()
