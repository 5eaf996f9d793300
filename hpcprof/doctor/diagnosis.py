"""``diagnose``: runs every check that applies, here or on compute nodes, and merges the answers."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcprof.doctor import CHECKS, compute_nodes, environment, lanes, output_folder
from hpcprof.doctor.configuration import Configuration, configure
from hpcprof.doctor.registry import LOGIN, NODE, Check
from hpcprof.doctor.row import FAIL, STATES, Row, not_checked
from hpcprof.doctor.subject import Request, Subject, node_name

SCHEMA = 1
# all checks of this machine together
_SECONDS = 50.0


@dataclass(frozen=True)
class Line:
    """One line of the table: a row, and the nodes that gave it; () for the machine that asks."""

    row: Row
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What was found. ``nodes`` are the compute nodes that answered, sorted."""

    machine: str
    spec: str
    site: str
    lines: tuple[Line, ...]
    nodes: tuple[str, ...]
    asked_nodes: bool

    @property
    def exit_code(self) -> int:
        """4 when something does not work as it is, else 0."""
        return 4 if self.counts[FAIL] else 0

    @property
    def counts(self) -> dict[str, int]:
        """How many lines are in each state, the worst first."""
        return {state: sum(line.row.state == state for line in self.lines) for state in STATES}

    def to_json(self) -> dict[str, Any]:
        """For ``--format json``; ``nodes`` of a row is empty for the machine that asks."""
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "spec": self.spec,
            "site": self.site,
            "nodes": list(self.nodes),
            "counts": self.counts,
            "rows": [
                {
                    "check": line.row.check,
                    "state": line.row.state,
                    "found": line.row.found,
                    "advice": line.row.advice,
                    "nodes": list(line.nodes),
                }
                for line in self.lines
            ],
        }


def diagnose(
    spec_path: Path | None,
    *,
    srun: bool = False,
    srun_extra: Sequence[str] = (),
    python: str | None = None,
    wait_s: int = 30,
    progress: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Check this machine, or with ``srun`` this machine as login node and the compute nodes.

    ``progress`` is told the name of each check that has answered. Raises UsageError for
    ``srun_extra`` that must not be, InputError when the job spec cannot be read.
    """
    deadline = time.monotonic() + _SECONDS
    configuration = configure(spec_path, python=python, srun_extra=srun_extra)
    request = configuration.request._replace(wait_s=wait_s)
    rows = [row._replace(position=n - 100) for n, row in enumerate(configuration.rows)]

    def sink(row: Row) -> None:
        rows.append(row)
        progress(row.check)

    if srun:
        _check_with_nodes(configuration, request, sink, deadline)
    else:
        try:
            made = environment.prepare(request, os.environ)
            rows += [row._replace(position=-1) for row in made.rows]
            subject = Subject(request, made.environ, made.python, made.assumed)
            lanes.run(_checks(LOGIN, NODE), subject, sink, deadline=deadline)
        finally:
            environment.end_daemons()
    merged = merge(rows)
    return Diagnosis(
        machine=node_name(),
        spec=request.spec,
        site=request.site,
        lines=tuple(merged),
        nodes=tuple(sorted({row.node for row in rows if row.node})),
        asked_nodes=srun,
    )


def _check_with_nodes(
    configuration: Configuration, request: Request, sink: lanes.Sink, deadline: float
) -> None:
    """The checks of a login node, and beside them srun."""
    probe: Path | None = None
    if request.output_dir:
        token = secrets.token_hex(8)
        try:
            probe = output_folder.leave_probe(Path(request.output_dir), token)
            request = request._replace(probe=str(probe), token=token)
        except OSError:
            pass  # the check of the folder says so
    limit = compute_nodes.limit_s(request)

    def ask_nodes(subject: Subject) -> Iterator[Row]:
        if configuration.srun_problem:
            advice = "Mend the job spec or the site file."
            yield not_checked(compute_nodes.NAME, configuration.srun_problem, advice)
        else:
            yield from compute_nodes.rows(subject.request, subject.environ)

    instead = "Try srun by hand."
    nodes = Check(compute_nodes.NAME, "", NODE, "srun", limit + 10, instead, ask_nodes)
    try:
        subject = Subject(request, os.environ)
        lanes.run([*_checks(LOGIN), nodes], subject, sink, deadline=deadline + limit)
    finally:
        if probe is not None:
            output_folder.remove(probe)


def _checks(*places: str) -> list[Check]:
    return [check for check in CHECKS if check.where in places]


def merge(rows: Sequence[Row]) -> list[Line]:
    """Rows in the order of the checks, this machine first; equal answers of nodes are one line."""
    here = [Line(row) for row in sorted(rows, key=lambda row: row.position) if not row.node]
    answers: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row.node:
            answers.setdefault((row.check, row.state, row.found, row.advice), []).append(row)
    first: dict[str, int] = {}
    for row in rows:
        if row.node:
            first[row.check] = min(row.position, first.get(row.check, row.position))
    lines = [
        Line(same[0]._replace(node=""), tuple(sorted(row.node for row in same)))
        for same in answers.values()
    ]
    lines.sort(key=lambda line: (first[line.row.check], line.row.check, line.nodes))
    return here + lines
