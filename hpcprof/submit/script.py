"""Renders batch scripts: arguments in, text out, nothing read but the templates.

Every value meets one of two filters: ``shq`` makes it one word for the shell, ``directive``
refuses what sbatch would not read as one word.
"""

from __future__ import annotations

import functools
import json
import shlex
from typing import Any

import jinja2

from hpcprof.job_spec import JobSpec
from hpcprof.resources import data_folder
from hpcprof.site_config import Site
from hpcprof.submit.containers import (
    PACKAGE_INSIDE,
    SCRATCH_INSIDE,
    launcher_inside,
    pyxis_mounts,
    pyxis_options,
    training_command,
)
from hpcprof.submit.extras import directive
from hpcprof.submit.options import (
    agent_options,
    collect_directives,
    flush_options,
    flush_s,
    is_profiled,
    job_directives,
    run_record,
    srun_options,
)
from hpcprof.submit.placement import Placement


def render_job_script(spec: JobSpec, site: Site, placement: Placement) -> str:
    """The batch script that runs the training under ``hpcprof launch`` on every rank.

    Raises UsageError when an option in spec or site must not be in a job script.
    """
    record = run_record(spec, site, {"hpcprof": placement.version}, placement.data_dir)
    return _render(
        f"{spec.strategy}.sbatch.j2",
        directives=job_directives(spec, site),
        flush_note=_flush_note(spec),
        job_name=spec.name,
        output_dir=str(placement.output_dir),
        workdir=str(placement.workdir),
        interpreter=placement.interpreter,
        version=placement.version,
        modules=site.modules.load,
        profile_modules=site.modules.profile_load if is_profiled(spec) else (),
        activations=[text for text in (site.python.activate, spec.python.activate) if text],
        env={**site.env.set, **spec.env},
        horovod_timeline=spec.profile.horovod_timeline,
        horovod_ticks=spec.profile.horovod_ticks,
        run_json=_json_of_lines(record),
        srun_options=[
            *srun_options(spec, site),
            *pyxis_options(spec, placement, profiled=is_profiled(spec)),
        ],
        agent_options=agent_options(spec, site),
        flush_options=flush_options(spec),
        command=training_command(spec, site),
        mounts=pyxis_mounts(spec, site, placement),
        launcher_inside=launcher_inside(spec),
        package_inside=PACKAGE_INSIDE,
        scratch_inside=SCRATCH_INSIDE,
    )


def render_collect_script(spec: JobSpec, site: Site, placement: Placement, job_id: str) -> str:
    """The batch script that analyses the run folders of job ``job_id`` after it has ended."""
    return _render(
        "collect.sbatch.j2",
        directives=collect_directives(spec, site),
        first_run_dir=str(placement.run_dir(spec.name, job_id)),
        interpreter=placement.interpreter,
    )


def render_starter_spec(name: str, strategy: str, site: str) -> str:
    """A commented ``hpcprof.yaml`` to begin with; ``load_spec`` accepts it as it is."""
    return _render("hpcprof.yaml.j2", name=name, strategy=strategy, site=site)


def _flush_note(spec: JobSpec) -> str:
    """Why the flush begins at another time than the spec says; "" when it does not."""
    seconds, asked = flush_s(spec), spec.profile.flush_s
    if not seconds or seconds == asked:
        return ""
    return f"the flush begins {seconds} s before the time limit, at its half, not {asked} s"


def _render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(values)


def _json_of_lines(record: dict[str, Any]) -> str:
    """One line for each key. All ASCII, and no line can be the mark that ends it in the script:
    each starts with a brace or a space."""
    lines = (f" {json.dumps(key)}: {json.dumps(record[key], sort_keys=True)}" for key in record)
    return "{\n" + ",\n".join(lines) + "\n}"


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_folder("slurm")),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # shell, not HTML: shq is the escape
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shq"] = shlex.quote
    environment.filters["directive"] = directive
    return environment
