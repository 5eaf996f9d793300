"""`python -m tests.cluster up [-n N] | down | status | env | check`."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time

from . import lifecycle, state
from .cluster import Cluster
from .errors import ClusterError
from .layout import Layout


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code (0 done, 1 refused, failed or something left)."""
    options = _parser().parse_args(argv)
    # so that a half-built cluster is taken down when a CI system ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        code: int = options.verb(Layout.from_environ(), options)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    up = verbs.add_parser("up", help="start a cluster")
    up.add_argument("-n", "--nodes", type=int, default=4, help="virtual nodes (default 4)")
    up.set_defaults(verb=_up)
    down = verbs.add_parser("down", help="remove the cluster and check that nothing is left")
    down.add_argument("--force", action="store_true", help="even if a test session uses it")
    down.set_defaults(verb=_down)
    verbs.add_parser("status", help="what is up").set_defaults(verb=_status)
    verbs.add_parser("env", help="export lines to eval in a shell").set_defaults(verb=_env)
    check = verbs.add_parser("check", help="fail if a cluster that is not up left something")
    check.set_defaults(verb=_check)
    return parser


def _up(layout: Layout, options: argparse.Namespace) -> int:
    begin = time.monotonic()
    cluster = lifecycle.up(layout, options.nodes)
    print(f"cluster: {', '.join(cluster.nodes)} idle after {time.monotonic() - begin:.1f} s")
    print(
        'cluster: to use it: eval "$(python3 -m tests.cluster env)"; to end it: make cluster-down'
    )
    return 0


def _down(layout: Layout, options: argparse.Namespace) -> int:
    return _report(lifecycle.down(layout, force=options.force))


def _status(layout: Layout, options: argparse.Namespace) -> int:
    found = state.read(layout)
    if found is None:
        print(f"cluster: none in {layout.base}")
        return 0
    if not lifecycle.is_running(found) or lifecycle.is_abandoned(found):
        print(f"cluster: broken or abandoned in {layout.base}; make cluster-down cleans up")
        return 1
    by = "by hand" if found.owner.kind == "hand" else f"by test session {found.owner.pid}"
    print(f"cluster: up in {layout.base}, {found.node_count} nodes, started {by}")
    print(Cluster(layout, found).run("sinfo", "-N", "-l").stdout.rstrip())
    return 0


def _env(layout: Layout, options: argparse.Namespace) -> int:
    cluster = lifecycle.open_cluster(layout)
    for name, value in {**cluster.own_env, "PATH": cluster.env["PATH"]}.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def _check(layout: Layout, options: argparse.Namespace) -> int:
    found = state.read(layout)
    if found and found.owner.kind == "hand" and lifecycle.is_running(found):
        print("cluster: up by hand, left alone")
        return 0
    return _report(lifecycle.leftovers(layout))


def _report(left: list[str]) -> int:
    for item in left:
        print(f"cluster: left behind: {item}", file=sys.stderr)
    if not left:
        print("cluster: nothing left (process, mount, link, cgroup, folder)")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
