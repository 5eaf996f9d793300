"""Which nsys is installed and what it can do. Makes no command line (nsys_command).

Options differ between versions, so what the installed one's own help text does not list is not
asked for; version numbers are never compared.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

_HELP_TIMEOUT_SECONDS = 20
# "-s, --sample="; deprecated ones begin with that word, do nothing, and are not ours
_OPTION_RE = re.compile(r"^\s*(?:-(\w), )?--([a-z][a-z0-9-]*)", re.MULTILINE)
# "Possible values are 'cuda', 'nvtx', ..." of --trace; also "Select ... from: 'cuda',"
_TRACE_RE = re.compile(r"^\s*-t, --trace=.*?(?=^\s*(?:-\w, )?--[a-z])", re.MULTILINE | re.DOTALL)
_QUOTED_RE = re.compile(r"'([a-z0-9-]+)'")

DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0")


class NsysBuild(NamedTuple):
    """One installed nsys: its trace kinds, and the options of ``nsys profile``.

    Options are without dashes, long and short: "sample", "s". One that ends in a dash stands for
    all that begin so: "nvtx-domain-".
    """

    path: str
    version: str
    trace_kinds: Sequence[str]
    options: Sequence[str]


class Interactive(NamedTuple):
    """The options of ``nsys launch`` and ``nsys start``, by which a window is controlled."""

    launch_options: Sequence[str]
    start_options: Sequence[str]


def find_nsys(wanted: str | None, environ: Mapping[str, str]) -> str | None:
    """Path of nsys: ``wanted``, else the first on PATH; None when it is not an executable file."""
    if wanted:
        candidates = [os.path.expandvars(os.path.expanduser(wanted))]
    else:
        folders = environ.get("PATH", os.defpath).split(os.pathsep)
        candidates = [os.path.join(folder, "nsys") for folder in folders if folder]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return None


def inspect_nsys(path: str, cache_folder: Path) -> NsysBuild:
    """What this nsys can do. Asked once per node and build: two runs of nsys take 50 ms a rank.

    Raises OSError when it cannot be run, ValueError when its help text is not understood.
    """
    cache, key = _cache(path, cache_folder, "build")
    stored = _stored(cache, key, NsysBuild._fields)
    if stored is not None:
        return NsysBuild(**stored)._replace(path=path)
    version = _run([path, "--version"]).strip().splitlines()
    build = parse_help(path, version[-1] if version else "", _run([path, "profile", "--help"]))
    _store(cache, {"key": key, **build._asdict()})
    return build


def inspect_interactive(path: str, cache_folder: Path) -> Interactive:
    """What ``nsys launch`` and ``nsys start`` can do; asked only where a window needs them.

    Raises OSError when it cannot be run.
    """
    cache, key = _cache(path, cache_folder, "interactive")
    stored = _stored(cache, key, Interactive._fields)
    if stored is not None:
        return Interactive(**stored)
    found = Interactive(
        _options(_run([path, "launch", "--help"])), _options(_run([path, "start", "--help"]))
    )
    _store(cache, {"key": key, **found._asdict()})
    return found


def parse_help(path: str, version: str, help_text: str) -> NsysBuild:
    """Read the output of ``nsys profile --help``. Raises ValueError when it lists no trace kind."""
    section = _TRACE_RE.search(help_text)
    values = section.group(0).split("Select")[0] if section else ""
    kinds = [kind for kind in _QUOTED_RE.findall(values) if kind != "none"]
    if not kinds:
        raise ValueError("the help text of nsys lists no trace kinds")
    match = re.search(r"version ([0-9.]+[0-9])", version)
    return NsysBuild(path, match.group(1) if match else version, kinds, _options(help_text))


def _options(help_text: str) -> list[str]:
    return sorted({name for pair in _OPTION_RE.findall(help_text) for name in pair if name})


def _cache(path: str, folder: Path, what: str) -> tuple[Path, str]:
    """Where the answer of this build is kept, and the key that must stand in it.

    Raises OSError when there is no such program.
    """
    real = os.path.realpath(path)
    found = os.stat(real)
    key = f"{real}\n{found.st_mtime_ns}\n{found.st_size}"
    return folder / f"nsys-{what}-{zlib.crc32(key.encode()):08x}.json", key


def _stored(cache: Path, key: str, names: Iterable[str]) -> dict[str, Any] | None:
    """The kept answer, None when there is none, or another build's, or not ours."""
    try:
        stored = json.loads(cache.read_text(encoding="utf-8"))
        return {name: stored[name] for name in names} if stored["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _run(argv: Sequence[str]) -> str:
    """Output of a short command. Raises OSError when it fails or hangs."""
    import subprocess

    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_HELP_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(argv)} did not end in {_HELP_TIMEOUT_SECONDS} s") from None
    return done.stdout.decode("utf-8", "replace")


def _store(cache: Path, value: dict[str, Any]) -> None:
    """Keep the answer for the other ranks; a rename, since eight of them may write at once."""
    import contextlib

    from hpcprof.artifacts import atomic

    with contextlib.suppress(OSError):  # costs the next rank 50 ms
        atomic.write_json(cache, value)


def trace_kinds(
    build: NsysBuild, wanted: Iterable[str], environ: Mapping[str, str], *, has_gpu: bool
) -> list[str]:
    """Those of ``wanted`` that this nsys knows and that can occur in this process."""
    under_mpi = any(
        name in environ
        for name in ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
    )
    absent = set()
    if not has_gpu:
        absent |= {"cuda", "cublas", "cudnn", "cusparse"}
    if not under_mpi:
        absent |= {"mpi", "ucx", "oshmem"}
    return [kind for kind in wanted if kind in build.trace_kinds and kind not in absent]


def node_has_gpu(environ: Mapping[str, str]) -> bool:
    """True when an NVIDIA device file or nvidia-smi is there (containers may hide either)."""
    if any(map(os.path.exists, DEVICE_FILES)):
        return True
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.path.exists(os.path.join(folder, "nvidia-smi")) for folder in folders if folder)


def has_usable_gpu(environ: Mapping[str, str]) -> bool:
    """True when CUDA can be called: a device file is there and no GPU is hidden on purpose.

    Slurm sets NoDevFiles for a task without GPUs.
    """
    hidden = environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles")
    return not hidden and any(map(os.path.exists, DEVICE_FILES))
