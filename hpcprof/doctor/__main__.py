"""``python -I -m hpcprof.doctor``: the part on a compute node, one task per node inside srun.

Prints one line per row. Needs the standard library and, for nsys's importer and the capture,
the readers.
"""

from __future__ import annotations

import os
import sys
import time

from hpcprof.doctor import CHECKS, compute_nodes, environment, lanes
from hpcprof.doctor.registry import (
    NODE,
    NODE_SECONDS,
    RANKS,
    RANKS_GRACE_SECONDS,
    RANKS_SECONDS,
)
from hpcprof.doctor.row import Row, not_checked
from hpcprof.doctor.subject import VARIABLE, Request, Subject, node_name


def main() -> int:
    """Run the checks of a node, then those of all nodes together; returns 0."""
    started = time.monotonic()
    node = node_name()

    def tell(row: Row) -> None:
        line = row._replace(node=node).to_line()
        sys.stdout.write(f"{compute_nodes.MARK}{line}\n")
        sys.stdout.flush()

    try:
        request = Request.from_json(os.environ.pop(VARIABLE, ""))
    except ValueError as error:
        advice = "Install the same hpcprof for python.interpreter as on the login node."
        tell(not_checked("request", f"it cannot be read: {error}", advice))
        return 0
    try:
        _look(request, tell, started)
    finally:
        environment.end_daemons()
    tell(Row(compute_nodes.END, "OK", os.environ.get("SLURM_PROCID", "")))
    return 0


def _look(request: Request, tell: lanes.Sink, started: float) -> None:
    """All checks. ``started``: the time.monotonic() of the start of this part."""
    made = environment.prepare(request, os.environ)
    for row in made.rows:
        tell(row._replace(position=-1))
    ranks_until = started + RANKS_SECONDS
    subject = Subject(request, made.environ, made.python, made.assumed)._replace(
        on_node=True, ranks_until=ranks_until
    )
    alone = [check for check in CHECKS if check.where == NODE]
    lanes.run(alone, subject, tell, deadline=started + NODE_SECONDS)

    def tell_last(row: Row) -> None:
        tell(row._replace(position=row.position + 100 * len(alone)))

    together = [check for check in CHECKS if check.where == RANKS]
    lanes.run(together, subject, tell_last, deadline=ranks_until + RANKS_GRACE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
