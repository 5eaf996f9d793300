"""Starts the daemons in order and waits until each one answers."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from . import processes
from .config import MONOTONIC_STEP_S, Plan
from .errors import ClusterError
from .layout import Layout, node_name
from .network import connect_node
from .requirements import with_sbin
from .state import Resource


def daemon_environ(layout: Layout) -> dict[str, str]:
    """A small, known environment: nothing of the caller's may reach slurmd."""
    path = with_sbin({"PATH": "/usr/local/bin:/usr/bin:/bin"})["PATH"]
    return {"PATH": path, "LANG": "C.UTF-8", "SLURM_CONF": str(layout.slurm_conf)}


def start_munged(layout: Layout) -> None:
    """Authentication for this cluster only, with its own key and socket."""
    folder = layout.munge_socket.parent
    folder.mkdir(mode=0o755)
    argv = [
        "munged",
        "--foreground",
        "--force",  # a base folder below /tmp is not to munge's taste
        f"--key-file={layout.etc}/munge.key",
        f"--socket={layout.munge_socket}",
        f"--pid-file={folder}/pid",
        f"--log-file={layout.log}/munged.log",
        f"--seed-file={folder}/seed",
    ]
    daemon = processes.spawn(layout, "munged", argv, daemon_environ(layout))
    _wait(layout, daemon, lambda: _accepts(layout.munge_socket))


def start_database(layout: Layout) -> None:
    """MariaDB on a socket, without any port, on a fresh data folder."""
    env = daemon_environ(layout)
    install = processes.spawn(
        layout,
        "mariadb-install-db",
        [
            "mariadb-install-db",
            "--no-defaults",
            "--user=root",
            f"--datadir={layout.database}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--innodb-log-file-size=8M",
        ],
        env,
    )
    _wait_for_end(layout, install, lambda: (layout.database / "mysql").is_dir())
    argv = [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={layout.database}",
        f"--socket={layout.database_socket}",
        f"--pid-file={layout.run}/mariadb.pid",
        "--skip-networking",
        "--skip-log-bin",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
    ]
    daemon = processes.spawn(layout, "mariadbd", argv, env)
    _wait(layout, daemon, lambda: _accepts(layout.database_socket))


def start_slurmdbd(layout: Layout, plan: Plan) -> None:
    """The accounting daemon, so that sacct works."""
    env = {**daemon_environ(layout), "MYSQL_UNIX_PORT": str(layout.database_socket)}
    daemon = processes.spawn(layout, "slurmdbd", ["slurmdbd", "-D"], env)
    _wait(layout, daemon, lambda: _listens(plan.host_address, plan.database_port))


def start_slurmctld(layout: Layout, plan: Plan) -> None:
    """The controller."""
    (layout.spool / "slurmctld").mkdir()
    argv = ["slurmctld", "-D", "-f", str(layout.slurm_conf)]
    daemon = processes.spawn(layout, "slurmctld", argv, daemon_environ(layout))
    _wait(layout, daemon, lambda: _listens(plan.host_address, plan.controller_port))


def start_node(layout: Layout, index: int) -> Resource:
    """One node in its own namespaces: network, mount, UTS, IPC, PID and time."""
    name = node_name(index)
    layout.private_tmp(name).mkdir(parents=True)
    (layout.spool / f"slurmd.{name}").mkdir()
    argv = [
        "unshare",
        *("--mount", "--propagation", "slave"),
        *("--uts", "--ipc", "--net"),
        *("--time", "--monotonic", str(index * MONOTONIC_STEP_S)),
        *("--pid", "--fork", "--kill-child", "--mount-proc"),
        *("sh", str(layout.node_script(name))),
    ]
    node = processes.spawn(layout, name, argv, daemon_environ(layout))
    try:
        connect_node(layout, index, node.pid)
    except ClusterError as error:
        raise ClusterError(f"{name}: {error}; {_tail(layout, name)}") from error
    return node


def wait_for_nodes(layout: Layout, count: int, timeout: float = 60.0) -> None:
    """Wait until Slurm calls all nodes idle."""
    env = {**with_sbin(os.environ), **daemon_environ(layout)}
    deadline = time.monotonic() + timeout
    while (idle := _idle_nodes(env)) != count:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{idle} of {count} nodes idle after {timeout:.0f} s; "
                f"{_tail(layout, 'slurmctld')}; {_tail(layout, node_name(0))}"
            )
        time.sleep(0.1)


def free_port() -> int:
    """A TCP port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _idle_nodes(env: Mapping[str, str]) -> int:
    command = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    return sum(int(word) for word in done.stdout.split())


def _wait(
    layout: Layout, daemon: Resource, ready: Callable[[], bool], timeout: float = 30.0
) -> None:
    deadline = time.monotonic() + timeout
    while not ready():
        if not processes.is_alive(daemon):
            raise ClusterError(f"{daemon.name} ended at once; {_tail(layout, daemon.name)}")
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{daemon.name} does not answer after {timeout:.0f} s; {_tail(layout, daemon.name)}"
            )
        time.sleep(0.02)


def _wait_for_end(
    layout: Layout, process: Resource, done: Callable[[], bool], timeout: float = 60.0
) -> None:
    deadline = time.monotonic() + timeout
    while processes.is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    if not done():
        raise ClusterError(f"{process.name} failed; {_tail(layout, process.name)}")


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return path.exists() and client.connect_ex(str(path)) == 0


def _listens(host: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((host, port)) == 0


def _tail(layout: Layout, name: str) -> str:
    """Last lines of a daemon's logs, for an error message."""
    for suffix in ("log", "out"):
        path = layout.log / f"{name}.{suffix}"
        if path.exists() and (text := path.read_text(errors="replace").strip()):
            return f"end of {path}:\n" + "\n".join(text.splitlines()[-8:])
    return f"no log in {layout.log}"
