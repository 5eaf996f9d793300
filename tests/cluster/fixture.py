"""The `cluster` fixture: one cluster for the whole test session.

A cluster that was brought up by hand is used and left up; otherwise one with four nodes is
started and taken down at the end, also when tests fail. After SIGKILL of the session the next
`up` or `down` cleans.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Generator, Iterator

import pytest

from . import lifecycle
from .cluster import Cluster
from .errors import ClusterBusyError, FaultUnavailableError
from .layout import Layout
from .requirements import missing

NODE_COUNT = 4
# another test session on this machine may be using the cluster: wait for its end
BUSY_TIMEOUT_S = 600


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running Slurm cluster with nodes `node0` to `node3`; skips where there can be none."""
    if reason := missing():
        pytest.skip(reason)
    layout = Layout.from_environ()
    yield from _running(layout)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A fault this machine cannot inject skips its test."""
    try:
        return (yield)
    except FaultUnavailableError as error:
        pytest.skip(str(error))


def _running(layout: Layout) -> Iterator[Cluster]:
    found = _wait_for_turn(layout)
    if found.owner_kind == "hand":
        yield found
        return
    # pytest's own finalizer is not run when the interpreter is left in a hurry
    atexit.register(lifecycle.down, layout)
    try:
        yield found
    finally:
        left = lifecycle.down(layout)
        atexit.unregister(lifecycle.down)
    assert not left, f"the test cluster left behind: {', '.join(left)}"


def _wait_for_turn(layout: Layout) -> Cluster:
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return lifecycle.up(layout, NODE_COUNT, owner_kind="test")
        except ClusterBusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(2)
