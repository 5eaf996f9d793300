"""Text of the configuration files: slurm.conf, slurmdbd.conf, gres.conf, hosts, node scripts.

Pure functions of a layout and a plan; `write_all` puts the results into the `etc` folder.
"""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from .layout import Layout, node_name
from .network import address

CPUS_PER_NODE = 16
GPUS_PER_NODE = 4
# node K's monotonic clock runs this many seconds times K ahead of the host's
MONOTONIC_STEP_S = 1000


@dataclass(frozen=True)
class Plan:
    """What is to be built: numbers that are free on this machine at this moment."""

    node_count: int
    subnet: str
    controller_port: int
    database_port: int

    @property
    def host_address(self) -> str:
        return f"{self.subnet}.1"


def slurm_conf(layout: Layout, plan: Plan) -> str:
    """The one slurm.conf of controller, nodes and commands."""
    nodes = "\n".join(
        f"NodeName={node_name(i)} NodeAddr={address(plan.subnet, i)} CPUs={CPUS_PER_NODE} "
        f"RealMemory=6000 Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
        for i in range(plan.node_count)
    )
    return f"""\
ClusterName=hpcprof
SlurmctldHost={socket.gethostname().split(".")[0]}({plan.host_address})
# a free port: a Slurm of this machine may hold the usual ones
SlurmctldPort={plan.controller_port}
SlurmdPort=6818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
MpiDefault=pmix
# cgroups of a container are often read-only, so nothing here needs them
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile={layout.run}/slurmctld.pid
SlurmdPidFile={layout.run}/slurmd.%n.pid
SlurmdSpoolDir={layout.spool}/slurmd.%n
StateSaveLocation={layout.spool}/slurmctld
SlurmctldLogFile={layout.log}/slurmctld.log
SlurmdLogFile={layout.log}/slurmd.%n.log
MailProg=/bin/true
# a different folder on each node, or pmix of one node trips over that of the next
TmpFS={layout.node_tmp}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# more CPUs than this machine has
SlurmdParameters=config_overrides
GresTypes=gpu
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
# time limits bite at once, and what ignores SIGTERM has ten seconds
OverTimeLimit=0
KillWait=10
# slow answers are normal on a loaded machine and with a throttled node
MessageTimeout=30
BatchStartTimeout=30
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={plan.host_address}
AccountingStoragePort={plan.database_port}
AccountingStoragePass={layout.munge_socket}
AccountingStorageTRES=gres/gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def slurmdbd_conf(layout: Layout, plan: Plan) -> str:
    """slurmdbd finds MariaDB through $MYSQL_UNIX_PORT, so no port of it is open."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost=localhost
DbdAddr={plan.host_address}
DbdPort={plan.database_port}
SlurmUser=root
LogFile={layout.log}/slurmdbd.log
PidFile={layout.run}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
"""


def hosts(plan: Plan) -> str:
    """This machine's hosts file plus the nodes; only the nodes see it."""
    own = Path("/etc/hosts")
    lines = [own.read_text().rstrip("\n")] if own.exists() else ["127.0.0.1 localhost"]
    lines += [f"{address(plan.subnet, i)} {node_name(i)}" for i in range(plan.node_count)]
    return "\n".join(lines) + "\n"


def node_script(layout: Layout, plan: Plan, index: int, cpu_group: Path | None) -> str:
    """First process of a node, inside all its namespaces; the node ends with it.

    A shell stays as pid 1 beside slurmd because somebody has to reap orphans.
    """
    name = node_name(index)
    join_group = f"echo 0 > {cpu_group}/cgroup.procs" if cpu_group else ": # no cpu cgroup"
    return f"""\
set -eu
hostname {name}
{join_group}
mount --bind {layout.hosts} /etc/hosts
mount --bind {layout.private_tmp(name)} {layout.node_tmp}
mount -t tmpfs -o mode=1777 hpcprof-{name}-shm /dev/shm
tries=0
until ip link show eth0 >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || {{ echo "no eth0 after 10 s" >&2; exit 1; }}
    sleep 0.05
done
ip link set lo up
ip addr add {address(plan.subnet, index)}/24 dev eth0
ip link set eth0 up
slurmd -D -f {layout.slurm_conf} -N {name} &
wait "$!"
"""


def write_all(layout: Layout, plan: Plan, cpu_group: Path | None) -> None:
    """Write every file under `etc`, and the files that stand for GPUs."""
    layout.slurm_conf.write_text(slurm_conf(layout, plan))
    layout.hosts.write_text(hosts(plan))
    (layout.etc / "cgroup.conf").write_text("# no cgroup is used; the file must exist\n")
    devices = f"{layout.run}/fakegpu[0-{GPUS_PER_NODE - 1}]"
    (layout.etc / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={devices}\n")
    for gpu in range(GPUS_PER_NODE):
        _make_device(layout.run / f"fakegpu{gpu}")
    _write_private(layout.etc / "slurmdbd.conf", slurmdbd_conf(layout, plan).encode())
    _write_private(layout.etc / "munge.key", os.urandom(1024))
    for index in range(plan.node_count):
        group = cpu_group / node_name(index) if cpu_group else None
        layout.node_script(node_name(index)).write_text(node_script(layout, plan, index, group))


def _make_device(path: Path) -> None:
    """A second /dev/null: Slurm sets CUDA_VISIBLE_DEVICES for device files only."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        # a container without CAP_MKNOD: GPUs are counted, but not numbered
        path.touch()


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)
