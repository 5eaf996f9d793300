"""Site files: one YAML per cluster, found by name, by path, or by the cluster it matches.

A site may extend one parent: maps are merged key by key, lists and words are replaced. Knows
nothing of job specs and runs no Slurm command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveInt

from hpcprof.config_file import ConfigFile, ConfigModel, read_config_file, validate
from hpcprof.config_types import (
    SCHEMA,
    Env,
    Line,
    Lines,
    Mounts,
    SchemaVersion,
    Text,
    TimeLimit,
)
from hpcprof.errors import InputError, UsageError
from hpcprof.resources import data_folder

FALLBACK = "generic-slurm"
AUTO = "auto"
_NAME_RE = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9_-]*\Z")
# these say which site a file is; a child never takes them from its parent
_NOT_INHERITED = ("name", "description", "extends", "match")


def _site_name(value: str) -> str:
    if not _NAME_RE.match(value):
        raise ValueError("may hold letters, digits, '_' and '-'")
    return value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression ({error})") from None
    return value


SiteName = Annotated[str, AfterValidator(_site_name)]
Regex = Annotated[Line, AfterValidator(_regex)]


class MatchConfig(ConfigModel):
    """How the site is recognised: Slurm's cluster name first, then host name patterns."""

    hostname: tuple[Regex, ...] = ()
    cluster_name: Line | None = None


class SrunConfig(ConfigModel):
    """Options of the srun that starts the training; None leaves Slurm's default."""

    mpi: Line | None = None
    cpu_bind: Line | None = None
    extra: Lines = ()


class SlurmConfig(ConfigModel):
    """What this site's Slurm wants."""

    account_required: bool = False
    default_partition: Line | None = None
    srun: SrunConfig = SrunConfig()
    sbatch_extra: Lines = ()
    kill_wait_s: PositiveInt = 30  # KillWait of slurm.conf: from SIGTERM to SIGKILL


class ModulesConfig(ConfigModel):
    """Environment modules; ``profile_load`` only in jobs that are profiled."""

    load: Lines = ()
    profile_load: Lines = ()


class EnvConfig(ConfigModel):
    """Variables of the training's environment."""

    set: Env = Field(default_factory=dict)


class PythonConfig(ConfigModel):
    """As ``python`` of a job spec, for all jobs of the site; the spec's ``activate`` comes second
    and its ``interpreter`` wins."""

    activate: Text | None = None
    interpreter: Line | None = None


class NsysConfig(ConfigModel):
    """Nsight Systems here. ``path`` and ``importer`` None: found on PATH and beside nsys."""

    path: Line | None = None
    trace: Lines = ("cuda", "nvtx", "mpi")
    extra: Lines = ()
    importer: Line | None = None


class ContainerConfig(ConfigModel):
    """Mounts of every container here, for example scratch, or the folder of nsys for Pyxis."""

    mounts: Mounts = ()


class OverlayConfig(ConfigModel):
    """Options added only when a profiler may run."""

    sbatch: Lines = ()
    srun: Lines = ()


class OutputConfig(ConfigModel):
    """Where run folders go; ``$NAME`` is filled in when the job script is made."""

    dir: Line | None = None


class CollectConfig(ConfigModel):
    """The job that analyses a run; partition None is that of the training."""

    partition: Line | None = None
    time: TimeLimit = "01:00:00"
    mem_gib: PositiveInt | None = None


class Site(ConfigModel):
    """One cluster."""

    schema_version: SchemaVersion = Field(SCHEMA, alias="schema")
    name: SiteName
    description: Line | None = None
    extends: SiteName | None = None
    match: MatchConfig = MatchConfig()
    slurm: SlurmConfig = SlurmConfig()
    modules: ModulesConfig = ModulesConfig()
    env: EnvConfig = EnvConfig()
    python: PythonConfig = PythonConfig()
    nsys: NsysConfig = NsysConfig()
    container: ContainerConfig = ContainerConfig()
    profile_overlay: OverlayConfig = OverlayConfig()
    output: OutputConfig = OutputConfig()
    collect: CollectConfig = CollectConfig()


def site_folders() -> list[Path]:
    """Folders searched for site files, the user's own before the shipped one."""
    return [Path("~/.config/hpcprof/sites").expanduser(), data_folder("site_configs")]


def load_site(name_or_path: str, folder: Path = Path()) -> Site:
    """Read a site file with its parents.

    What has a "/" or ends in .yaml is a path, and a relative one starts at ``folder``.

    Raises InputError when there is no such site, UsageError when a file of it is wrong.
    """
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    return _load(folder / name_or_path if is_path else _path_of(name_or_path))


def detect_site(cluster_name: str | None, hostname: str) -> Site:
    """The site that matches this cluster name, else this host name, else generic-slurm.

    Raises UsageError when two sites match alike, or when a site file is wrong.
    """
    sites = [_load(path) for path in _known_sites()]
    by_cluster = [s for s in sites if cluster_name and s.match.cluster_name == cluster_name]
    by_host = [s for s in sites if any(re.search(p, hostname) for p in s.match.hostname)]
    found = by_cluster or by_host
    if len(found) > 1:
        names = " and ".join(site.name for site in found)
        raise UsageError(
            f"the sites {names} both match cluster {cluster_name!r}, host {hostname!r}. "
            "Name one: site: in the job spec."
        )
    return found[0] if found else load_site(FALLBACK)


def _known_sites() -> Iterator[Path]:
    """One file for each name; the user's hides the shipped one of the same name."""
    seen: set[str] = set()
    for folder in site_folders():
        for path in sorted(folder.glob("*.yaml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield path


def _path_of(name: str) -> Path:
    known = {path.stem: path for path in _known_sites()}
    if name not in known:
        places = " or ".join(str(folder) for folder in site_folders())
        raise InputError(
            f"no site {name!r}: there is no {name}.yaml in {places}. "
            f"Known sites: {', '.join(sorted(known))}. A path to a site file works, too."
        )
    return known[name]


def _load(path: Path) -> Site:
    layers = _layers(path)
    for layer in layers:
        validate(Site, layer)  # one by one, so that an error names the right file and line
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        kept = {key: value for key, value in values.items() if key not in _NOT_INHERITED}
        values = _merge(kept, layer.values)
    return Site.model_validate(values)


def _layers(path: Path) -> list[ConfigFile]:
    """The file, its parent, the parent's parent, and so on."""
    layers: list[ConfigFile] = []
    while True:
        if any(layer.path == path for layer in layers):
            chain = " -> ".join(layer.path.name for layer in layers)
            raise UsageError(f"site files extend each other in a circle: {chain} -> {path.name}")
        layers.append(read_config_file(path, "site file"))
        parent = layers[-1].values.get("extends")
        if not parent:
            return layers
        path = _path_of(str(parent))


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _merge(old, value)
        merged[key] = value
    return merged
