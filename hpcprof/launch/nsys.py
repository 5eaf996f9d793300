"""Which nsys is installed, what it can do, and its command line. Starts no profiling.

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
_OPTION_RE = re.compile(r"^\s*(?:-\w, )?--([a-z][a-z0-9-]*)", re.MULTILINE)
# "Possible values are 'cuda', 'nvtx', ..." of --trace; also "Select ... from: 'cuda',"
_TRACE_RE = re.compile(r"^\s*-t, --trace=.*?(?=^\s*(?:-\w, )?--[a-z])", re.MULTILINE | re.DOTALL)
_QUOTED_RE = re.compile(r"'([a-z0-9-]+)'")

# each ends the training when the recording ends, or lets the job step end before the training
_ENDS_TRAINING = frozenset(
    ("--duration", "-d", "--duration-frames", "--kill", "--stop-on-exit", "-x", "--wait")
)
_TAKEN = frozenset(("--output", "-o", "--session-new", "--force-overwrite", "-f"))


class NsysBuild(NamedTuple):
    """One installed nsys: its trace kinds and long options (without dashes)."""

    path: str
    version: str
    trace_kinds: Sequence[str]
    options: Sequence[str]


class Session(NamedTuple):
    """What one recording needs: nsys's session name, and the report's path without ending."""

    name: str
    report_stem: Path


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
    real = os.path.realpath(path)
    found = os.stat(real)
    key = f"{real}\n{found.st_mtime_ns}\n{found.st_size}"
    cache = cache_folder / f"nsys-build-{zlib.crc32(key.encode()):08x}.json"
    try:
        stored = json.loads(cache.read_text(encoding="utf-8"))
        if stored["key"] == key:
            return NsysBuild(path, stored["version"], stored["trace_kinds"], stored["options"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or not ours: ask again
    version = _run([path, "--version"]).strip().splitlines()
    build = parse_help(path, version[-1] if version else "", _run([path, "profile", "--help"]))
    _store(cache, {"key": key, **build._asdict()})
    return build


def parse_help(path: str, version: str, help_text: str) -> NsysBuild:
    """Read the output of ``nsys profile --help``. Raises ValueError when it lists no trace kind."""
    section = _TRACE_RE.search(help_text)
    values = section.group(0).split("Select")[0] if section else ""
    kinds = [kind for kind in _QUOTED_RE.findall(values) if kind != "none"]
    if not kinds:
        raise ValueError("the help text of nsys lists no trace kinds")
    match = re.search(r"version ([0-9.]+[0-9])", version)
    options = sorted(set(_OPTION_RE.findall(help_text)))
    return NsysBuild(path, match.group(1) if match else version, kinds, options)


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
    if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/nvidia0"):
        return True
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.path.exists(os.path.join(folder, "nvidia-smi")) for folder in folders if folder)


def profile_argv(
    build: NsysBuild, session: Session, traces: Sequence[str], extra: Sequence[str]
) -> tuple[list[str], list[str]]:
    """``nsys profile`` without the command, and warnings about what was left out of ``extra``.

    Not given on purpose: -f (two ranks of one name would overwrite each other silently),
    --duration and --kill (they end the training), the osrt threshold.
    """
    allowed, warnings = _allowed(extra)
    argv = [build.path, "profile", f"--trace={','.join(traces)}"]
    chosen = {option.split("=")[0] for option in allowed}
    # wait=primary: with the default, a helper process left behind by the training blocks the job
    defaults = [("sample", "none"), ("cpuctxsw", "none"), ("wait", "primary")]
    for option, value in defaults:
        if option in build.options and f"--{option}" not in chosen:
            argv.append(f"--{option}={value}")
    argv.append(f"--session-new={session.name}")
    # nsys substitutes %h, %p and %q{...} in the name; ours is literal
    argv += ["-o", str(session.report_stem).replace("%", "%%")]
    if has_capture_range(allowed) and "--capture-range-end" not in chosen:
        # the default, stop-shutdown, sends TERM to the training at the end of the range
        argv.append("--capture-range-end=stop")
    return argv + allowed, warnings


def has_capture_range(extra: Iterable[str]) -> bool:
    """True when recording begins only when the training asks for it."""
    return any(
        o.startswith("--capture-range=") or o == "-c" or o == "--capture-range" for o in extra
    )


def _allowed(extra: Sequence[str]) -> tuple[list[str], list[str]]:
    """``extra`` without the options that would end the training or take the report elsewhere."""
    allowed: list[str] = []
    warnings: list[str] = []
    skip_value = False
    for option in extra:
        if skip_value and not option.startswith("-"):
            skip_value = False
            continue
        skip_value = False
        name = option.split("=")[0]
        ends_training = name in _ENDS_TRAINING or (
            name == "--capture-range-end" and option.partition("=")[2].find("shutdown") >= 0
        )
        if ends_training or name in _TAKEN:
            why = "it can end the training" if ends_training else "hpcprof sets it itself"
            warnings.append(f"nsys option {option} was left out: {why}")
            skip_value = "=" not in option
            continue
        allowed.append(option)
    return allowed, warnings
