"""Mounts of the host: list, bind, tmpfs, unmount. Nodes have their own, see `faults`."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

from .layout import Layout
from .processes import run_helper
from .state import Resource, record


def mount_points_under(folder: Path) -> list[Path]:
    """Mount points at or below `folder` on the host, the latest mounted first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(_unescape(line.split()[4]))
        if point == folder or folder in point.parents:
            found.append(point)
    return found[::-1]


def share(layout: Layout, folder: Path) -> None:
    """Make `folder` a mount whose later submounts appear on the nodes as well.

    The nodes' mount namespaces are slaves of this one, but a machine's root mount is often
    private, and nothing propagates from a private mount.
    """
    record(layout, Resource(kind="mount", name=str(folder)))
    run_helper(layout, "mount", "--bind", str(folder), str(folder))
    run_helper(layout, "mount", "--make-private", str(folder))
    run_helper(layout, "mount", "--make-shared", str(folder))


def mount_tmpfs(layout: Layout, folder: Path, size_mb: float) -> Resource:
    """A small filesystem of its own over `folder`."""
    resource = Resource(kind="mount", name=str(folder))
    record(layout, resource)
    options = f"size={int(size_mb * 1024)}k,mode=0755"
    run_helper(layout, "mount", "-t", "tmpfs", "-o", options, "hpcprof-full-disk", str(folder))
    return resource


def unmount(point: Path) -> None:
    """Unmount; when somebody is still in there, detach it and let it go with its last user."""
    if subprocess.run(["umount", str(point)], capture_output=True, check=False).returncode:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "--lazy", str(point)], capture_output=True, check=True)


def unmount_all_under(folder: Path) -> None:
    """Remove every mount at or below `folder`, stacked ones included."""
    for point in mount_points_under(folder):
        unmount(point)


def _unescape(field: str) -> str:
    r"""Mountinfo writes space, tab, newline and backslash as \040 and so on."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
