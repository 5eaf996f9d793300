"""Which numbers a quota becomes, in both versions of the kernel's interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cgroups import CpuGroups


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("cores", "quota_us"), [(0.25, "5000"), (2.0, "40000"), (0.001, "1000"), (None, "-1")]
)
def test_quota_in_version_1(tmp_path: Path, cores: float | None, quota_us: str) -> None:
    CpuGroups(tmp_path, 1).set_quota(tmp_path, cores)
    assert _files(tmp_path) == {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": quota_us}


@pytest.mark.parametrize(("cores", "limit"), [(0.25, "5000 20000"), (None, "max 20000")])
def test_quota_in_version_2(tmp_path: Path, cores: float | None, limit: str) -> None:
    CpuGroups(tmp_path, 2).set_quota(tmp_path, cores)
    assert _files(tmp_path) == {"cpu.max": limit}


def test_version_2_hands_the_controller_down_to_the_group(tmp_path: Path) -> None:
    CpuGroups(tmp_path, 2).create(tmp_path / "hpcprof" / "node0")
    for folder in (tmp_path, tmp_path / "hpcprof"):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpu"
    assert not (tmp_path / "hpcprof" / "node0" / "cgroup.subtree_control").exists()


def test_groups_outside_the_hierarchy_are_not_removed(tmp_path: Path) -> None:
    groups = CpuGroups(tmp_path / "root", 1)
    assert not groups.remove(tmp_path / "elsewhere")
    assert not groups.remove(tmp_path / "root")
