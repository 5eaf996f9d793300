"""Lets what hpcprof needs through into an Apptainer or Singularity container.

hpcprof launch stays outside, in front of ``apptainer exec IMAGE COMMAND``. Inside must be visible,
under the same names: the folders that launch names (``binds``), this package, to which a link in
the state folder leads, and nsys's libraries; and, also with ``--cleanenv``, the variables of
hpcprof and nsys. Those of nsys are known only to the process that nsys starts, so this file is
also a program, run as ``python -I -S container.py COMMAND``: it passes them on and becomes COMMAND.
It imports nothing of hpcprof. Knows no image, and changes no option of the user's.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Iterable, Mapping, Sequence

_RUNTIMES = ("apptainer", "singularity")
# Apptainer reads both, its own first, and warns when they differ; SingularityCE knows the second
_PREFIXES = ("APPTAINER", "SINGULARITY")
_OURS = "HPCPROF_"
# repeated here, since nothing of hpcprof is imported: rank_env.NVTX, attempt.MARK_VARIABLE
LISTENER = "HPCPROF_NVTX"
# nvtx_format.INJECTION and LIBRARY: our own recorder, which is seen inside through our package
INJECTION = "NVTX_INJECTION64_PATH"
RECORDER = "libhpcprof_nvtx.so"
NSYS_MARK = "HPCPROF_NSYS_ATTEMPT"
_NO_SHELL = ("--no-eval", "APPTAINER_NO_EVAL", "SINGULARITY_NO_EVAL")

# what nsys 2022.4 gives to the program it starts (seen), and to its children; newer ones: the same
# names in NVIDIA's user guide
_NSYS_PREFIXES = ("NSYS_", "QUADD_", "NVTX_INJECTION", "CUDA_INJECTION")
_NSYS_OTHERS = ("TRACE_START_IMMEDIATELY", "USE_AGENT_API")
_NSYS_LIBRARY = "libToolsInjection"


def is_container(command: Sequence[str]) -> bool:
    """Whether the program of ``command`` is a container runtime that launch stays in front of."""
    return os.path.basename(command[0]) in _RUNTIMES


def command(
    command: Sequence[str], environ: Mapping[str, str], binds: Sequence[Path]
) -> tuple[list[str], dict[str, str]]:
    """``command`` and its environment, so that ``binds`` and hpcprof are visible inside.

    ``environ`` is the recorded application's; a program that is no container runtime is returned
    as it is. Paths that do not exist are left out, and those that hold ',' or ':', which no bind
    can name. Raises nothing.
    """
    if not is_container(command):
        return list(command), dict(environ)
    package = Path(__file__).resolve().parents[1]
    ours = {
        name: value
        for name, value in environ.items()
        if (name.startswith(_OURS) or _is_recorder(name, value))
        and name != NSYS_MARK
        and _is_plain(value)
    }
    result = _with_variables(environ, ours)
    folder = environ.get("PYTHONPATH", "").split(os.pathsep)[0]
    if folder:
        # the image's own PYTHONPATH, or else the host's, comes after ours
        result = _with_first(result, command, "PYTHONPATH", folder)
    result = _with_binds(result, [*map(str, binds), str(package)])
    if LISTENER not in environ:
        return list(command), result
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *command], result


def main(argv: Sequence[str]) -> int:
    """Pass nsys's variables on and become the command; returns only when that fails."""
    environ = with_nsys(os.environ, argv)
    try:
        os.execvpe(argv[0], list(argv), environ)
    except OSError as error:
        sys.stderr.write(f"hpcprof launch: cannot run {argv[0]!r}: {error.strerror}\n")
        return 127 if error.errno == errno.ENOENT else 126


def with_nsys(environ: Mapping[str, str], command: Sequence[str]) -> dict[str, str]:
    """``environ`` with nsys's variables and folders passed through; as it is without nsys."""
    found = {
        name: value
        for name, value in environ.items()
        if (name.startswith(_NSYS_PREFIXES) or name in _NSYS_OTHERS) and _is_plain(value)
    }
    preloaded = [p for p in environ.get("LD_PRELOAD", "").split(":") if p]
    folders = {os.path.dirname(p) for p in preloaded if _NSYS_LIBRARY in p}
    result = _with_variables(environ, found)
    libraries = [p for p in preloaded if os.path.dirname(p) in folders]
    if libraries:
        result = _with_first(result, command, "LD_PRELOAD", ":".join(libraries))
    # its configuration files lie in /tmp, its sockets in its own TMPDIR
    named = [value for value in found.values() if value.startswith("/")]
    folders |= {os.path.dirname(path) for path in named if path.endswith(".so")}
    return _with_binds(result, [*folders, *(p for p in named if not p.endswith(".so"))])


def _is_recorder(name: str, value: str) -> bool:
    return name == INJECTION and os.path.basename(value) == RECORDER


def _is_plain(value: str) -> bool:
    """Whether the container's shell leaves ``value`` as it is, see ``_with_first``."""
    return not set(value) & set('$`\\"')


def _with_variables(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """``environ`` that sets ``wanted`` inside, whatever ``--cleanenv`` and the image do."""
    result = dict(environ)
    for prefix in _PREFIXES:
        result.update({f"{prefix}ENV_{name}": value for name, value in wanted.items()})
    return result


def _with_first(
    environ: Mapping[str, str], command: Sequence[str], name: str, value: str
) -> dict[str, str]:
    """``environ`` that puts ``value`` in front of what the variable is inside.

    What the user gives is kept. Without it the container's shell fills in what image or host say
    (it reads such values as in double quotes), unless it is told not to.
    """
    given = next((environ[f"{p}ENV_{name}"] for p in _PREFIXES if f"{p}ENV_{name}" in environ), "")
    literal = any(flag in command or flag in environ for flag in _NO_SHELL)
    rest = f":{given}" if given else "" if literal else f"${{{name}:+:${name}}}"
    return _with_variables(environ, {name: value + rest})


def _with_binds(environ: Mapping[str, str], paths: Iterable[str]) -> dict[str, str]:
    """``environ`` with these paths added to what the user has bound by variable."""
    given = next((environ[f"{p}_BIND"] for p in _PREFIXES if environ.get(f"{p}_BIND")), "")
    binds = given.split(",") if given else []
    for path in paths:
        if path not in binds and not set(path) & set(",:") and os.path.exists(path):
            binds.append(path)
    return {**environ, **{f"{prefix}_BIND": ",".join(binds) for prefix in _PREFIXES}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
