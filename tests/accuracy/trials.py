"""Makes the trials of sessions and keeps their results, one JSON file per session."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcprof.artifacts.atomic import write_json
from tests.cluster.cluster import Cluster

from .clock_error import clock_errors
from .outcome import accusations, outcome
from .plan import Session
from .session import run_session
from .windows import judge, read_run


def results_of(folder: Path, session: Session) -> Path:
    """Where the results of a session are kept; a session with results is not run again."""
    return folder / f"{session.name}.json"


def run(
    cluster: Cluster, session: Session, folder: Path, python: Path, nsys: Path | None
) -> dict[str, Any]:
    """Run one session, judge its trials and keep the results. Raises SessionFailedError."""
    work = cluster.shared / f"accuracy-{session.name}"
    ran = run_session(cluster, session, work, python, nsys)
    ingested = read_run(ran.run_dir, work / "store")
    trials = []
    for window in ran.windows:
        record = judge(ran.run_dir, ingested, window)
        accused = accusations(record["findings"])
        trials.append(
            {
                "fault": window.trial.fault,
                "ranks": list(window.trial.ranks),
                "nodes": list(window.trial.nodes),
                "steps": [window.first, window.last],
                "step_ns": record["run"]["step_ns"],
                "accused": accused,
                "outcome": outcome(window.trial, accused),
                "lateness_ns": record["phases"]["lateness_ns"],
                "transfer_frac": record["interconnect"]["transfer_frac"],
                "links": record["interconnect"]["links"],
            }
        )
    result = {
        "session": session.name,
        "nodes": session.nodes,
        "profiled": session.profiled,
        "trials": trials,
        "clocks": clock_errors(ingested.clocks, ran.truth, ran.first_ns, ran.last_ns),
        "warnings": list(ingested.warnings),
    }
    folder.mkdir(parents=True, exist_ok=True)
    # small, and what a surprising clock is explained from
    shutil.copytree(ran.run_dir / "nodes", folder / f"{session.name}-nodes", dirs_exist_ok=True)
    write_json(results_of(folder, session), result)
    shutil.rmtree(work, ignore_errors=True)
    return result


def read_results(folder: Path) -> Iterator[dict[str, Any]]:
    """Results of all sessions that were run."""
    for path in sorted(folder.glob("*.json")):
        yield json.loads(path.read_text())
