"""Site files: inheritance, where they are found, which one matches, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.errors import InputError, UsageError
from hpcprof.site_config import Site, detect_site, load_site, site_folders

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def user_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own site folder, empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".config/hpcprof/sites"
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, name: str, text: str = "") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"schema: 1\nname: {name}\n{text}")
    return path


def test_every_shipped_site_loads_under_its_file_name() -> None:
    paths = sorted(site_folders()[1].glob("*.yaml"))
    assert [load_site(path.stem).name for path in paths] == [path.stem for path in paths]
    assert {"generic-slurm", "test-cluster"} <= {path.stem for path in paths}


def test_generic_site_spells_out_the_defaults_of_the_model() -> None:
    generic = load_site("generic-slurm")
    defaults = Site(name="generic-slurm", description=generic.description)
    assert generic == defaults


def test_test_cluster_starts_open_mpi_over_the_nodes_network() -> None:
    site = load_site("test-cluster")
    assert site.slurm.srun.mpi == "pmix"
    assert site.env.set["OMPI_MCA_btl"] == "self,tcp"
    assert site.env.set["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert site.collect.time == "00:10:00"


def test_child_merges_maps_and_replaces_lists(user_sites: Path) -> None:
    write(
        user_sites,
        "below",
        "description: parent\nmatch: {cluster_name: below}\n"
        "env: {set: {A: '1', B: '2'}}\nmodules: {load: [cuda, mpi]}\nslurm: {kill_wait_s: 60}\n",
    )
    write(
        user_sites,
        "above",
        "extends: below\nenv: {set: {B: '3'}}\nmodules: {load: [gcc]}\n"
        "slurm: {srun: {mpi: pmi2}}\n",
    )
    site = load_site("above")
    assert site.env.set == {"A": "1", "B": "3"}
    assert site.modules.load == ("gcc",)
    assert (site.slurm.kill_wait_s, site.slurm.srun.mpi) == (60, "pmi2")
    # who the parent is does not say who the child is
    assert (site.name, site.description, site.match.cluster_name) == ("above", None, None)


def test_blank_field_of_a_child_lifts_the_parents_value(user_sites: Path) -> None:
    write(user_sites, "below", "slurm: {default_partition: gpu}\n")
    write(user_sites, "above", "extends: below\nslurm:\n  default_partition:\n")
    assert load_site("above").slurm.default_partition is None


def test_error_names_the_file_and_line_of_the_parent(user_sites: Path) -> None:
    write(user_sites, "below", "slurm: {srn: {}}\n")
    path = write(user_sites, "above", "extends: below\n")
    with pytest.raises(UsageError) as caught:
        load_site(str(path))
    assert str(caught.value) == (
        f"{user_sites}/below.yaml is not a valid site file (1 problem):\n"
        "  line 3: slurm.srn: unknown field; did you mean 'srun'?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("match: {hostname: ['^gpu(']}", "line 3: match.hostname.0: is not a regular expression"),
        ("env: {set: {HPCPROF_RUN_DIR: x}}", "line 3: env.set.HPCPROF_RUN_DIR: is hpcprof's"),
        ("env: {set: {PATH: '/x:$PATH'}}", "line 3: env.set: the value of PATH holds $PATH itself"),
        ("container: {mounts: [x]}", "line 3: container.mounts.0: is not a mount; write /data"),
        ("collect: {time: 0}", "line 3: collect.time: is no limit at all to Slurm"),
        ("slurm: {kill_wait_s: soon}", "line 3: slurm.kill_wait_s: input should be a valid int"),
    ],
)
def test_a_wrong_field_is_named(user_sites: Path, text: str, message: str) -> None:
    path = write(user_sites, "wrong", text)
    with pytest.raises(UsageError) as caught:
        load_site(str(path))
    assert message in str(caught.value)


def test_sites_that_extend_each_other_are_refused(user_sites: Path) -> None:
    write(user_sites, "a", "extends: b\n")
    write(user_sites, "b", "extends: a\n")
    with pytest.raises(UsageError, match=r"in a circle: a\.yaml -> b\.yaml -> a\.yaml"):
        load_site("a")


def test_unknown_name_lists_the_known_ones(user_sites: Path) -> None:
    write(user_sites, "mine")
    with pytest.raises(InputError) as caught:
        load_site("miine")
    assert "no site 'miine'" in str(caught.value)
    assert "Known sites: generic-slurm, mine, test-cluster" in str(caught.value)
    with pytest.raises(InputError, match="site file not found"):
        load_site("./mine.yaml")


def test_users_file_hides_the_shipped_one(user_sites: Path) -> None:
    write(user_sites, "test-cluster", "description: mine\n")
    assert load_site("test-cluster").description == "mine"


def test_relative_path_starts_at_the_folder_given(tmp_path: Path) -> None:
    write(tmp_path, "own")
    assert load_site("own.yaml", tmp_path).name == "own"


def test_cluster_name_counts_more_than_host_name(user_sites: Path) -> None:
    write(user_sites, "by-host", "match: {hostname: ['^login[0-9]+\\.x$']}\n")
    write(user_sites, "by-cluster", "match: {cluster_name: big}\n")
    assert detect_site("big", "login1.x").name == "by-cluster"
    assert detect_site("other", "login1.x").name == "by-host"
    assert detect_site(None, "login1.x").name == "by-host"
    assert detect_site(None, "xlogin1.x").name == "generic-slurm"
    assert detect_site("hpcprof", "anything").name == "test-cluster"


def test_two_matching_sites_are_not_guessed_between(user_sites: Path) -> None:
    write(user_sites, "one", "match: {cluster_name: big}\n")
    write(user_sites, "two", "match: {cluster_name: big}\n")
    with pytest.raises(UsageError, match="one and two both match cluster 'big'"):
        detect_site("big", "h")
