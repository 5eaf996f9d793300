"""Brings the cluster up and takes it down again, whatever state it is found in."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import config, mounts, network, processes, services, state
from .cgroups import CpuGroups, find_cpu_groups
from .cluster import Cluster
from .errors import ClusterBusyError, ClusterError
from .layout import FOLDERS, Layout, node_name
from .requirements import missing, with_sbin
from .state import Owner, Resource, State


def up(layout: Layout, node_count: int = 2, owner_kind: str = "hand") -> Cluster:
    """Start a cluster of `node_count` nodes and return it, all nodes idle.

    Takes a broken one down first, and one whose test session was killed. A running one is
    returned as it is when it has as many nodes. Raises ClusterBusyError when it has not or is a
    test session's, ClusterError when something is missing or fails; nothing is left behind then.
    """
    if reason := missing():
        raise ClusterError(reason)
    if not 1 <= node_count <= 200:
        raise ClusterError(f"cannot make {node_count} nodes: 1 to 200 fit into the network")
    os.environ["PATH"] = with_sbin(os.environ)["PATH"]
    with state.operation_lock(layout):
        found = state.read(layout)
        if found and is_running(found) and not is_abandoned(found):
            _refuse_other(layout, found, node_count)
            return Cluster(layout, found)
        _clean(layout)
        with _cleaned_on_failure(layout):
            _build(layout, node_count, _owner(owner_kind))
        return open_cluster(layout)


def down(layout: Layout, *, force: bool = False) -> list[str]:
    """Remove everything of this cluster; returns what could not be removed (nothing: empty).

    Does nothing when there is no cluster. Raises ClusterBusyError when a living test session
    other than this process owns it, unless `force` is set.
    """
    os.environ["PATH"] = with_sbin(os.environ)["PATH"]
    with state.operation_lock(layout):
        found = state.read(layout)
        if found and not force and is_in_foreign_use(found):
            raise ClusterBusyError(
                f"a test session (pid {found.owner.pid}) uses the cluster in {layout.base}; "
                "end it first, or use `down --force`"
            )
        _clean(layout)
        return leftovers(layout)


def open_cluster(layout: Layout) -> Cluster:
    """The running cluster of this base folder; ClusterError when there is none."""
    found = state.read(layout)
    if found is None or not is_running(found):
        raise ClusterError(f"no cluster is up in {layout.base}; start one: make cluster-up")
    return Cluster(layout, found)


def is_running(found: State) -> bool:
    """Whether the record says `up` and every daemon and node of it is alive."""
    daemons = [p for p in found.of_kind("process") if not p.name.startswith("bindfs")]
    wanted = [p for p in daemons if p.name != "mariadb-install-db"]
    return found.phase == "up" and bool(wanted) and all(map(processes.is_alive, wanted))


def is_in_foreign_use(found: State) -> bool:
    """Whether a living test session that is not this process owns the cluster."""
    return found.owner.kind == "test" and found.owner.pid != os.getpid() and _owner_lives(found)


def is_abandoned(found: State) -> bool:
    """Whether the cluster belongs to a test session that is no more; its faults may still act."""
    return found.owner.kind == "test" and not _owner_lives(found)


def leftovers(layout: Layout) -> list[str]:
    """Everything of this cluster that exists on the machine, one phrase each."""
    found = state.read(layout)
    recorded = found.of_kind("process") if found else []
    living = {p.pid for p in [*recorded, *processes.marked(layout.base)] if processes.is_alive(p)}
    items = [f"process {pid} ({processes.command_of(pid)[:60]})" for pid in sorted(living)]
    items += [f"mount {point}" for point in mounts.mount_points_under(layout.base)]
    items += [f"network link {name}" for name in network.links_of(layout)]
    groups = find_cpu_groups()
    if groups and (groups.root / layout.cpu_group).exists():
        items.append(f"cgroup {groups.root / layout.cpu_group}")
    if layout.base.exists():
        items.append(f"folder {layout.base}")
    return items


def _build(layout: Layout, node_count: int, owner: Owner) -> None:
    plan = config.Plan(
        node_count=node_count,
        subnet=network.free_subnet(layout),
        controller_port=services.free_port(),
        database_port=services.free_port(),
    )
    _make_folders(layout, plan, owner)
    group = _make_cpu_groups(layout, node_count)
    config.write_all(layout, plan, group)
    mounts.share(layout, layout.shared)
    network.create_bridge(layout, plan.subnet)
    services.start_munged(layout)
    services.start_database(layout)
    services.start_slurmdbd(layout, plan)
    services.start_slurmctld(layout, plan)
    for index in range(node_count):
        services.start_node(layout, index)
    services.wait_for_nodes(layout, node_count)
    state.set_phase(layout, "up")


def _make_folders(layout: Layout, plan: config.Plan, owner: Owner) -> None:
    layout.base.mkdir(parents=True, exist_ok=True)
    layout.base.chmod(0o755)
    first = State(
        phase="starting",
        owner=owner,
        node_count=plan.node_count,
        subnet=plan.subnet,
        controller_port=plan.controller_port,
        database_port=plan.database_port,
    )
    state.write(layout, first)
    for name in FOLDERS:
        (layout.base / name).mkdir()


def _make_cpu_groups(layout: Layout, node_count: int) -> Path | None:
    """One cpu group per node; None where this machine lets us make none."""
    groups = find_cpu_groups()
    if groups is None:
        return None
    top = groups.root / layout.cpu_group
    state.record(layout, Resource(kind="cgroup", name=str(top)))
    try:
        for index in range(node_count):
            groups.create(top / node_name(index))
    except OSError:
        groups.remove(top)
        return None
    return top


def _clean(layout: Layout) -> None:
    found = state.read(layout)
    if found is None:
        _check_foreign_folder(layout)
    else:
        if found.phase != "stopping":
            state.set_phase(layout, "stopping")
        processes.end(found.of_kind("process"))
    processes.end(processes.marked(layout.base))
    mounts.unmount_all_under(layout.base)
    network.delete_links(layout)
    _remove_cpu_groups(find_cpu_groups(), layout)
    _delete_folders(layout)


def _remove_cpu_groups(groups: CpuGroups | None, layout: Layout) -> None:
    if groups and (top := groups.root / layout.cpu_group).is_dir():
        groups.remove(top)


def _check_foreign_folder(layout: Layout) -> None:
    """Refuse a base folder with contents that no cluster has put there."""
    strangers = [p for p in layout.base.glob("*") if not p.match("state.*.tmp")]
    if strangers:
        raise ClusterError(
            f"{layout.base} exists, is not empty and has no state.json, so it is left alone; "
            "give another folder ($HPCPROF_CLUSTER_DIR) or remove it"
        )


def _delete_folders(layout: Layout) -> None:
    """Delete what a base folder holds by design; never across a mount that would not go."""
    if not layout.base.is_dir() or mounts.mount_points_under(layout.base):
        return
    for name in FOLDERS:
        shutil.rmtree(layout.base / name, ignore_errors=True)
    for file in [layout.state_file, *layout.base.glob("state.*.tmp")]:
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        layout.base.rmdir()


def _refuse_other(layout: Layout, found: State, node_count: int) -> None:
    if is_in_foreign_use(found):
        raise ClusterBusyError(
            f"a test session (pid {found.owner.pid}) uses the cluster in {layout.base}; "
            "wait for it, or use another folder ($HPCPROF_CLUSTER_DIR)"
        )
    if found.node_count != node_count:
        raise ClusterBusyError(
            f"a cluster of {found.node_count} nodes is up in {layout.base}; "
            "take it down first: make cluster-down"
        )


def _owner(kind: str) -> Owner:
    stat = processes.stat_of(os.getpid())
    return Owner(kind=kind, pid=os.getpid(), start=stat.start if stat else 0)


def _owner_lives(found: State) -> bool:
    stat = processes.stat_of(found.owner.pid)
    same_boot = found.boot_id == state.boot_id()
    return same_boot and stat is not None and stat.start == found.owner.start


@contextlib.contextmanager
def _cleaned_on_failure(layout: Layout) -> Iterator[None]:
    """Take a half-built cluster down, also on Ctrl-C and SystemExit."""
    try:
        yield
    except BaseException:
        _clean(layout)
        raise
