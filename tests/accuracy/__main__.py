"""`python -m tests.accuracy run [--only SESSION] | table`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.cluster import lifecycle
from tests.cluster.cluster import Cluster
from tests.cluster.layout import Layout
from tests.cluster.requirements import missing
from tests.setup import paths as tools

from .plan import SESSIONS
from .session import SessionFailedError
from .table import as_markdown
from .trials import read_results, results_of, run

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = REPOSITORY / "docs" / "accuracy-real.md"


def main() -> int:
    """Run one verb; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("verb", choices=("run", "table"))
    parser.add_argument("--only", help="one session")
    parser.add_argument("--results", type=Path, default=default_folder(), help="%(default)s")
    options = parser.parse_args()
    if options.verb == "table":
        TABLE.write_text(as_markdown(list(read_results(options.results))), encoding="utf-8")
        print(f"accuracy: wrote {TABLE}")
        return 0
    return run_all(options.results, options.only)


def default_folder() -> Path:
    """Results of this version of the repository; a change of hpcprof begins a new folder."""
    git = ["git", "-C", str(REPOSITORY), "log", "-1", "--format=%h", "--", "hpcprof"]
    version = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    cache = Path(os.environ.get("HPCPROF_CACHE", Path.home() / ".cache" / "hpcprof"))
    return cache / "accuracy-real" / (version or "unversioned")


def run_all(folder: Path, only: str | None) -> int:
    """Run the sessions that have no results yet."""
    python, nsys = tools.train_python(), tools.nsys()
    reason = missing() or (
        "" if python and nsys else "no training environment or nsys (make setup)"
    )
    if reason:
        print(f"accuracy: {reason}", file=sys.stderr)
        return 4
    todo = [s for s in SESSIONS if only in (None, s.name) and not results_of(folder, s).exists()]
    layout = Layout.from_environ()
    cluster = lifecycle.up(layout, 4, owner_kind="test") if todo else None
    try:
        for session in todo:
            assert isinstance(cluster, Cluster)
            try:
                result = run(cluster, session, folder, python, nsys)
            except SessionFailedError as error:
                print(f"accuracy: {session.name}: {error}", file=sys.stderr)
                cluster.cancel_all()
                continue
            for trial in result["trials"]:
                print(f"{session.name:18} {trial['fault']:13} {trial['outcome']}", flush=True)
    finally:
        if cluster is not None:
            lifecycle.down(layout)
    return 0 if all(results_of(folder, s).exists() for s in todo) else 1


if __name__ == "__main__":
    sys.exit(main())
