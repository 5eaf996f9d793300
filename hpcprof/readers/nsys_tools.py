"""Finds nsys and its importer on this machine and runs them. Knows nothing of runs and ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcprof.errors import InputError

# where nsys is when it is not on PATH; * is a version
_STANDARD_PLACES = (
    "/usr/lib/nsight-systems/target-linux-x64/nsys",  # Debian
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/usr/local/cuda/bin/nsys",
)
# folders below an installation named by a variable
_BELOW_VARIABLE = {
    "NVHPC_ROOT": ("profilers/Nsight_Systems/bin/nsys", "compilers/bin/nsys"),
    "CUDA_HOME": ("bin/nsys",),
}
_IMPORTER = "QdstrmImporter"
# Debian's nsys looks beside its own folder, where its importer is not
_IMPORTER_PLACES = ("/usr/lib/nsight-systems/host-linux-x64",)
# nsys handles about 240 MB a minute; four times that, and a start-up allowance
_SECONDS_PER_MB = 1.0
_SECONDS_AT_LEAST = 120.0


@dataclass(frozen=True)
class NsysTools:
    """The programs to read a recording with. ``importer`` is None when it was not found."""

    nsys: Path
    importer: Path | None

    def import_stream(self, stream: Path, report: Path) -> None:
        """Make ``report`` (which must not exist: the importer does not overwrite) of a .qdstrm.

        Raises InputError with the reason.
        """
        if self.importer is None:
            raise InputError(
                f"{stream} was not imported when it was recorded, and the importer "
                f"({_IMPORTER}) is not beside {self.nsys}. Run collect where it is installed."
            )
        self._run([str(self.importer), "-i", str(stream), "-o", str(report)], stream, report)

    def export(self, report: Path, database: Path) -> None:
        """Export a report to a fresh SQLite file. Raises InputError with the reason."""
        options = ["--type=sqlite", "--force-overwrite=true", f"--output={database}"]
        self._run([str(self.nsys), "export", *options, str(report)], report, database)

    def _run(self, command: Sequence[str], source: Path, result: Path) -> None:
        limit = _SECONDS_AT_LEAST + _SECONDS_PER_MB * source.stat().st_size / 1e6
        name = Path(command[0]).name
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"{name} did not read {source} within {limit:.0f} s") from None
        except OSError as error:
            raise InputError(f"{command[0]} cannot be run ({error.strerror})") from None
        # an exit code of 0 proves nothing: nsys reports success without having written a file
        if done.returncode != 0 or not result.is_file() or not result.stat().st_size:
            raise InputError(_explain(name, source, done.stdout.decode("utf-8", "replace")))


def find_tools(
    setting: str | None = None, environ: Mapping[str, str] = os.environ
) -> NsysTools | None:
    """nsys of this machine: ``setting`` (a program or a folder), PATH, or a standard place.

    None when there is none; a setting that leads nowhere also gives None.
    """
    candidates = [Path(setting)] if setting else _candidates(environ)
    for candidate in candidates:
        nsys = candidate / "nsys" if candidate.is_dir() else candidate
        if nsys.is_file():
            return NsysTools(nsys, _find_importer(nsys, environ))
    return None


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    on_path = shutil.which("nsys", path=environ.get("PATH", ""))
    found = [Path(on_path)] if on_path else []
    for variable, places in _BELOW_VARIABLE.items():
        if environ.get(variable):
            found += [Path(environ[variable]) / place for place in places]
    for pattern in _STANDARD_PLACES:
        found += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    return found


def _find_importer(nsys: Path, environ: Mapping[str, str]) -> Path | None:
    folder = nsys.resolve().parent
    places = [folder, folder.parent / "host-linux-x64", *map(Path, _IMPORTER_PLACES)]
    if environ.get("NVHPC_ROOT"):
        root = Path(environ["NVHPC_ROOT"]) / "profilers/Nsight_Systems"
        places += [root / "host-linux-x64", *root.glob("*/host-linux-x64")]
    return next((p / _IMPORTER for p in places if (p / _IMPORTER).is_file()), None)


def _explain(name: str, source: Path, output: str) -> str:
    if "incomplete or invalid" in output:
        return (
            f"{source} is incomplete: killed while recording (time limit or SIGKILL); "
            "nothing in it can be recovered"
        )
    lines = [line.strip() for line in output.replace("\r", "\n").splitlines() if line.strip()]
    # progress bars are of no use in a message
    said = " ".join(line for line in lines if "%" not in line)[-300:] or "it said nothing"
    return (
        f"{name} could not read {source}: {said}. A report needs an nsys at least as new as the "
        "one that recorded it, and a .qdstrm needs exactly the same version."
    )
