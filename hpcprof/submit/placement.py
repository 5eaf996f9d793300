"""Where a job's files go and which Python runs hpcprof in it, settled when the script is made.

Everything is absolute afterwards: the job script depends on no variable of the login node.
"""

from __future__ import annotations

import os
import string
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import hpcprof
from hpcprof.errors import EnvironmentLacksError, UsageError
from hpcprof.job_spec import JobSpec
from hpcprof.site_config import Site

# scratch folders that sites announce; the first that exists is used
_SCRATCH_VARIABLES = ("SCRATCH", "PSCRATCH", "CINECA_SCRATCH")


@dataclass(frozen=True)
class Placement:
    """``output_dir`` holds run folders and logs, ``workdir`` is where the training starts.

    ``data_dir`` is the data set, None when the spec does not name it.
    """

    output_dir: Path
    workdir: Path
    interpreter: str
    version: str = hpcprof.__version__
    data_dir: Path | None = None

    def run_dir(self, job_name: str, job_id: str) -> Path:
        """Run folder of a job that was not requeued and is no array task."""
        return self.output_dir / f"{job_name}-{job_id}"


def place(spec: JobSpec, site: Site, folder: Path, environ: Mapping[str, str]) -> Placement:
    """Settle the places. Relative paths of the spec start at ``folder``, where the spec is.

    Raises UsageError for a path or interpreter that cannot be meant.
    """
    workdir = _path(spec.workdir or ".", "workdir", folder, environ)
    if spec.output_dir:
        output_dir = _path(spec.output_dir, "output_dir", folder, environ)
    elif site.output.dir:
        output_dir = _path(site.output.dir, f"output.dir of site {site.name}", folder, environ)
    else:
        output_dir = _scratch(environ) or folder.absolute() / "hpcprof-runs"
    if "\\" in str(output_dir):
        # a backslash switches off the patterns in the name of Slurm's log file
        raise UsageError(f"output_dir: {output_dir} holds a backslash. Choose another folder.")
    data_dir = _path(spec.data_dir, "data_dir", folder, environ) if spec.data_dir else None
    return Placement(output_dir, workdir, _interpreter(spec, site), data_dir=data_dir)


def _path(text: str, field: str, folder: Path, environ: Mapping[str, str]) -> Path:
    try:
        filled = string.Template(text).substitute(environ)
    except KeyError as error:
        raise UsageError(
            f"{field}: {text} needs ${error.args[0]}, which is not set here."
        ) from None
    except ValueError:
        raise UsageError(f"{field}: {text}: write $NAME or ${{NAME}}, and $$ for a '$'.") from None
    if filled.startswith("~"):
        filled = os.path.expanduser(filled)
    return Path(os.path.normpath(folder.absolute() / filled))


def _scratch(environ: Mapping[str, str]) -> Path | None:
    for variable in _SCRATCH_VARIABLES:
        if environ.get(variable) and os.path.isdir(environ[variable]):
            return Path(environ[variable]).absolute() / "hpcprof"
    return None


def _interpreter(spec: JobSpec, site: Site) -> str:
    interpreter = spec.python.interpreter or site.python.interpreter or sys.executable
    if not interpreter:
        raise EnvironmentLacksError(
            "this Python does not know its own path. Write it as python.interpreter in the spec."
        )
    if not os.path.isabs(interpreter):
        raise UsageError(
            f"python.interpreter: {interpreter} must be an absolute path: "
            "PATH inside the job is that of the training."
        )
    return interpreter
