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
from hpcprof.submit.extras import directive
from hpcprof.submit.options import (
    collect_directives,
    job_directives,
    modules,
    run_record,
    srun_options,
)
from hpcprof.submit.placement import Placement


def render_job_script(spec: JobSpec, site: Site, placement: Placement) -> str:
    """The batch script that runs the training under ``hpcprof launch`` on every rank.

    Raises UsageError when an option in spec or site must not be in a job script.
    """
    record = run_record(spec, site, {"hpcprof": placement.version})
    activations = [text for text in (site.python.activate, spec.python.activate) if text]
    return (
        _templates()
        .get_template(f"{spec.strategy}.sbatch.j2")
        .render(
            directives=job_directives(spec, site),
            job_name=spec.name,
            output_dir=str(placement.output_dir),
            workdir=str(placement.workdir),
            interpreter=placement.interpreter,
            version=placement.version,
            modules=modules(spec, site),
            activations=activations,
            env={**site.env.set, **spec.env},
            # ASCII, and no line of it can be the end mark: all start with a brace or a space
            run_json=json.dumps(record, indent=1, sort_keys=True),
            srun_options=srun_options(spec, site),
            command=spec.command,
        )
    )


def render_collect_script(spec: JobSpec, site: Site, placement: Placement, job_id: str) -> str:
    """The batch script that analyses the run folders of job ``job_id`` after it has ended."""
    return (
        _templates()
        .get_template("collect.sbatch.j2")
        .render(
            directives=collect_directives(spec, site),
            first_run_dir=str(placement.run_dir(spec.name, job_id)),
            interpreter=placement.interpreter,
        )
    )


def render_starter_spec(name: str, strategy: str, site: str) -> str:
    """A commented ``hpcprof.yaml`` to begin with; ``load_spec`` accepts it as it is."""
    template = _templates().get_template("hpcprof.yaml.j2")
    return template.render(name=name, strategy=strategy, site=site)


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
