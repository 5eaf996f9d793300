"""CPU quotas through cgroup v1 (`cpu` controller) or, where there is none, cgroup v2."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 20_000


@dataclass(frozen=True)
class CpuGroups:
    """The mounted hierarchy that can limit CPU time."""

    root: Path
    version: int

    def create(self, group: Path) -> None:
        """Make a group folder; under v2 also let its parent hand the cpu controller down."""
        group.mkdir(parents=True, exist_ok=True)
        if self.version == 2:
            for parent in reversed(group.relative_to(self.root).parents):
                (self.root / parent / "cgroup.subtree_control").write_text("+cpu")

    def set_quota(self, group: Path, cores: float | None) -> None:
        """Limit the group to this many cores; None lifts the limit."""
        quota_us = None if cores is None else max(1000, int(cores * PERIOD_US))
        if self.version == 2:
            (group / "cpu.max").write_text(f"{quota_us or 'max'} {PERIOD_US}")
            return
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us or -1))

    def add(self, group: Path, pids: Iterable[int]) -> None:
        """Move whole processes (all threads); those that ended meanwhile are passed over."""
        for pid in pids:
            # `tasks` of v1 would move one thread only
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))

    def members(self, group: Path) -> list[int]:
        """Processes in the group itself, as pids of this pid namespace."""
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]

    def group_of(self, pid: int) -> Path:
        """Group folder a process is in."""
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            wanted = "cpu" in controllers.split(",") if self.version == 1 else not controllers
            if wanted:
                return self.root / path.lstrip("/")
        return self.root

    def remove(self, group: Path, timeout: float = 3.0) -> bool:
        """Delete the group and those below; processes still in there move out. True if gone."""
        if not group.is_relative_to(self.root) or group == self.root:
            return False
        folders = sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True)
        deadline = time.monotonic() + timeout
        for folder in [*folders, group]:
            while folder.is_dir():
                self.add(self.root, self.members(folder))
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.02)
        return True


def find_cpu_groups() -> CpuGroups | None:
    """The hierarchy with a cpu controller that this process may write to, or None."""
    version_2 = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split()[4])
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup" and "cpu" in options.split(","):
            return CpuGroups(point, 1)
        if kind == "cgroup2":
            controllers = point / "cgroup.controllers"
            if controllers.exists() and "cpu" in controllers.read_text().split():
                version_2 = CpuGroups(point, 2)
    return version_2
