"""From a job spec and its site to the request that the checks work on, and rows about both."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcprof.config_types import SCHEMA
from hpcprof.doctor.row import Row, fail, not_checked, ok
from hpcprof.doctor.subject import Request
from hpcprof.errors import EnvironmentLacksError, HpcprofError, UsageError
from hpcprof.job_spec import JobSpec, load_spec
from hpcprof.site_config import AUTO, FALLBACK, Site, detect_site, load_site
from hpcprof.submit.containers import training_command
from hpcprof.submit.extras import check_srun
from hpcprof.submit.options import is_profiled, job_directives, srun_options
from hpcprof.submit.placement import Placement, place
from hpcprof.submit.script import render_job_script
from hpcprof.submit.slurm import cluster_name

# options of the job script's header that say which nodes a job gets, as srun takes them too
_ALLOCATING = (
    *("--cpus-per-task", "--gres", "--mem", "--account", "--partition", "--constraint", "-C"),
    *("--qos", "-q", "--reservation", "--gpus", "--gpus-per-node", "--nodelist", "-w"),
    *("--exclude", "-x", "--licenses", "-L", "--exclusive", "--mem-per-cpu", "--mem-per-gpu"),
)
_MEND_SPEC = "Mend it, then look at the job script with: hpcprof generate"
_NODES_WITHOUT_SPEC = 2


class Configuration(NamedTuple):
    """The request, and what was wrong on the way. ``srun_problem``: why no srun can be made."""

    request: Request
    rows: list[Row]
    srun_problem: str


def configure(
    spec_path: Path | None,
    *,
    python: str | None = None,
    srun_extra: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Configuration:
    """Read spec and site. What is wrong in them becomes rows; defaults take their place.

    Raises UsageError for ``srun_extra`` that must not be, InputError when the spec cannot be read.
    """
    check_srun(srun_extra, "options of srun")
    rows: list[Row] = []
    spec = _spec(spec_path, rows)
    site = _site(spec, spec_path, environ, rows)
    placement = _placement(spec, site, spec_path, environ, rows)
    request = _request(spec, site, placement)._replace(
        spec=str(spec_path or ""),
        # checks run elsewhere; a bare name is looked for on PATH
        python=os.path.abspath(python) if python and "/" in python else python,
        nodes=_nodes(spec, environ),
    )
    try:
        options = _srun(spec, site, inside="SLURM_JOB_ID" in environ)
    except UsageError as error:
        return Configuration(request, rows, str(error))
    return Configuration(request._replace(srun=[*options, *srun_extra]), rows, "")


def _spec(path: Path | None, rows: list[Row]) -> JobSpec | None:
    if path is None:
        advice = "Name one to check what a job of it would need: hpcprof doctor hpcprof.yaml"
        rows.append(not_checked("job spec", "none given", advice))
        return None
    try:
        spec = load_spec(path)
    except UsageError as error:
        rows.append(fail("job spec", str(error), _MEND_SPEC))
        return None
    rows.append(ok("job spec", f"{path}: {spec.strategy}, {spec.world_size} ranks"))
    return spec


def _site(
    spec: JobSpec | None, path: Path | None, environ: Mapping[str, str], rows: list[Row]
) -> Site:
    try:
        if spec is None or spec.site == AUTO:
            site = detect_site(cluster_name(environ), socket.getfqdn())
        else:
            site = load_site(spec.site, path.parent if path else Path())
    except HpcprofError as error:
        rows.append(fail("site file", str(error), "Mend the site file, or site: in the job spec."))
        return load_site(FALLBACK)
    if site.name == FALLBACK:
        rows.append(ok("site file", f"{FALLBACK}: no site file matches this cluster"))
    else:
        rows.append(ok("site file", site.name))
    return site


def _placement(
    spec: JobSpec | None,
    site: Site,
    path: Path | None,
    environ: Mapping[str, str],
    rows: list[Row],
) -> Placement | None:
    """Where a job's files would go; None without a spec that can be submitted."""
    if spec is None or path is None:
        return None
    try:
        placement = place(spec, site, path.parent, environ)
        render_job_script(spec, site, placement)
    except (HpcprofError, OSError) as error:
        advice = _MEND_SPEC
        if isinstance(error, EnvironmentLacksError):
            advice = "Set python.interpreter in the job spec."
        rows.append(fail("job script", str(error), advice))
        return None
    rows.append(ok("job script", "can be made of spec and site"))
    return placement


def _request(spec: JobSpec | None, site: Site, placement: Placement | None) -> Request:
    request = Request(
        site=site.name,
        nsys_path=site.nsys.path,
        nsys_trace=site.nsys.trace,
        nsys_extra=site.nsys.extra,
        modules=site.modules.load,
        profile_modules=site.modules.profile_load,
        activations=[text for text in [site.python.activate] if text],
        env=site.env.set,
        interpreter=placement.interpreter if placement else sys.executable,
        output_dir=str(placement.output_dir) if placement else "",
        mpi=site.slurm.srun.mpi,
        kill_wait_s=site.slurm.kill_wait_s,
    )
    if spec is None:
        return request
    profile = spec.profile
    # without a placement something in the spec is wrong, maybe just this
    words = training_command(spec, site) if placement else spec.command
    return request._replace(
        strategy=spec.strategy,
        gpus_per_node=spec.gpus_per_node,
        profiler=profile.profiler,
        nsys_trace=site.nsys.trace if profile.trace is None else profile.trace,
        nsys_extra=[*site.nsys.extra, *profile.extra],
        profile_modules=site.modules.profile_load if is_profiled(spec) else (),
        activations=[text for text in (site.python.activate, spec.python.activate) if text],
        env={**site.env.set, **spec.env},
        workdir=str(placement.workdir) if placement else "",
        command=spec.command,
        container=spec.container.runtime if spec.container else "",
        container_words=words[: len(words) - len(spec.command)],
    )


def _nodes(spec: JobSpec | None, environ: Mapping[str, str]) -> int:
    """Nodes to look at: all of the allocation we are in, else as many as the spec asks for."""
    inside = environ.get("SLURM_JOB_NUM_NODES", "")
    if inside.isdigit():
        return int(inside)
    return spec.nodes if spec else _NODES_WITHOUT_SPEC


def _srun(spec: JobSpec | None, site: Site, *, inside: bool) -> list[str]:
    """Options of an srun onto the nodes that a job of ``spec`` would get. Raises UsageError."""
    spec = spec or JobSpec(
        schema=SCHEMA, name="doctor", strategy="horovod", time="2", command=("true",)
    )
    options = srun_options(spec, site)
    if inside:
        return ["--overlap", *options]
    allocating = [
        option
        for option in job_directives(spec, site)
        if option.partition("=")[0] in _ALLOCATING or option[:2] in _ALLOCATING
    ]
    return [*allocating, *options]
