"""The verbs init, generate and submit as library calls: from the path of a job spec to the result.

The analysis runs in a job of its own that waits for the training's, so that it never uses up the
training's time limit.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcprof.artifacts.atomic import write_text
from hpcprof.errors import EnvironmentLacksError, HpcprofError, InputError, UsageError
from hpcprof.job_spec import JobSpec, load_spec
from hpcprof.site_config import AUTO, Site, detect_site, load_site
from hpcprof.submit.extras import check_sbatch
from hpcprof.submit.placement import Placement, place
from hpcprof.submit.script import render_collect_script, render_job_script, render_starter_spec
from hpcprof.submit.slurm import JobId, cluster_name, sbatch


@dataclass(frozen=True)
class Submission:
    """What became of a submitted spec.

    ``run_dir`` will exist when the job has started; a requeue adds ``-r1``, an array task ``-a0``
    to its name. ``collect_id`` is None when no collect job was asked for or Slurm refused it;
    ``collect_problem`` then says why, or is "".
    """

    job_id: str
    run_dir: Path
    log: Path
    collect_id: str | None
    collect_log: Path | None
    collect_problem: str


def init(path: Path, *, strategy: str, site: str = AUTO, force: bool = False) -> None:
    """Write a commented job spec. Raises UsageError when the file exists and not ``force``."""
    if site != AUTO:
        load_site(site, path.parent)
    if path.exists() and not force:
        raise UsageError(f"{path} exists and will not be overwritten without --force.")
    try:
        write_text(path, render_starter_spec("train", strategy, site))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error})") from None


def generate(spec_path: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The job script of a spec, for ``sbatch``; submits and writes nothing."""
    return render_job_script(*_load(spec_path, environ))


def submit(spec_path: Path, environ: Mapping[str, str] = os.environ) -> Submission:
    """Submit the training and, if the spec wants it, the collect job that waits for it.

    A refused collect job is reported in the result: the training is in the queue by then.
    """
    spec, site, placement = _load(spec_path, environ)
    script = render_job_script(spec, site, placement)
    if "SBATCH_SIGNAL" in environ:
        check_sbatch([f"--signal={environ['SBATCH_SIGNAL']}"], "SBATCH_SIGNAL in the environment")
    _check_interpreter(placement.interpreter)
    _make_output_folder(placement.output_dir)
    # here and not in the script: Slurm fails a job silently when the log's folder is missing
    log = [_log_option(placement, f"{spec.name}-%j.log"), "--open-mode=append"]  # kept by a requeue
    job = sbatch(script, log, environ)
    run_dir = placement.run_dir(spec.name, job.number)
    collect_id, problem = None, ""
    if spec.collect:
        try:
            collect_id = _submit_collect(spec, site, placement, job, environ)
        except HpcprofError as error:
            problem = str(error)
    return Submission(
        job_id=job.number,
        run_dir=run_dir,
        log=Path(f"{run_dir}.log"),
        collect_id=collect_id,
        collect_log=Path(f"{run_dir}-collect.log") if collect_id else None,
        collect_problem=problem,
    )


def _load(spec_path: Path, environ: Mapping[str, str]) -> tuple[JobSpec, Site, Placement]:
    spec = load_spec(spec_path)
    if spec.site == AUTO:
        site = detect_site(cluster_name(environ), socket.getfqdn())
    else:
        site = load_site(spec.site, spec_path.parent)
    return spec, site, place(spec, site, spec_path.parent, environ)


def _submit_collect(
    spec: JobSpec, site: Site, placement: Placement, job: JobId, environ: Mapping[str, str]
) -> str:
    script = render_collect_script(spec, site, placement, job.number)
    options = [
        _log_option(placement, f"{spec.name}-{job.number}-collect.log"),
        # any end: a failed or cancelled training is the one that needs explaining
        f"--dependency=afterany:{job.number}",
        *([f"--clusters={job.cluster}"] if job.cluster else []),
    ]
    return sbatch(script, options, environ).number


def _log_option(placement: Placement, name: str) -> str:
    folder = str(placement.output_dir).replace("%", "%%")  # Slurm's patterns begin with "%"
    return f"--output={folder}/{name}"


def _make_output_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"output_dir {folder} cannot be made ({error.strerror}). "
            "Choose a folder you may write to that the compute nodes see as well."
        ) from None


def _check_interpreter(interpreter: str) -> None:
    """Refuse an interpreter that has no hpcprof. One that is not on this node is let pass: login
    and compute nodes may differ, and the job script looks again."""
    if not os.path.exists(interpreter):
        return
    command = [interpreter, "-I", "-c", "import hpcprof"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise EnvironmentLacksError(
            f"{interpreter} cannot import hpcprof by itself (with -I, so that PYTHONPATH and "
            "pip install --user do not count). Install hpcprof into a virtual environment and "
            "call it from there."
        )
