"""The training's environment as the job script makes it: modules, activation, variables.

Runs the same words in a bash of its own and reads the variables that are left.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcprof.doctor import command
from hpcprof.doctor.lanes import MARK_VARIABLE
from hpcprof.doctor.row import Row, fail, not_checked, ok, warn
from hpcprof.doctor.subject import PYXIS, Request
from hpcprof.launch import processes

NAME = "environment"
_SECONDS = 15.0
_BEGIN = "HPCPROF_DOCTOR_ENVIRONMENT"
_OF_OUR_BASH = ("_", "SHLVL", MARK_VARIABLE)
_PYTHON_RE = re.compile(r"\Apython[0-9.]*\Z")


class Environment(NamedTuple):
    """The training's variables, its interpreter as in ``Subject``, and rows on the way there."""

    environ: Mapping[str, str]
    python: Sequence[str]
    assumed: str
    rows: list[Row]


def prepare(request: Request, environ: Mapping[str, str]) -> Environment:
    """Make the environment, starting from ``environ``; ``end_daemons`` is to follow."""
    marked = {**environ, MARK_VARIABLE: _mark()}
    argv = ["bash", "-c", script(request)]
    try:
        said = command.run(argv, marked, seconds=_SECONDS, own_group=True)
        made, problems = parse(said.text)
        rows = list(judge(request, problems))
    except (command.NoAnswerError, ValueError) as error:
        made = dict(environ)
        end_daemons()
        advice = "Run what python.activate and the site file say by hand, and see where it hangs."
        rows = [not_checked(NAME, str(error), advice)]
    python, assumed = find_python(request, made)
    return Environment(made, python, assumed, rows)


def end_daemons() -> None:
    """End what modules and activation have left running; the checks may have needed it."""
    left = processes.with_environment(f"{MARK_VARIABLE}={_mark()}")
    processes.end(left, grace_seconds=1.0)


def _mark() -> str:
    return f"{os.getpid()}.environment"


def script(request: Request) -> str:
    """Bash text that does what the job script does and then prints all variables."""
    quoted = shlex.quote
    lines = ["problems="]
    if request.workdir:
        lines.append(f"cd -- {quoted(request.workdir)} || problems+=workdir,")
    if request.modules or request.profile_modules:
        lines.append("type module >/dev/null 2>&1 || . /etc/profile")
    for kind, modules in (("module", request.modules), ("profile", request.profile_modules)):
        if modules:
            lines.append(f"module load {' '.join(map(quoted, modules))} || problems+={kind},")
    for number, text in enumerate(request.activations):
        lines.append(f"eval {quoted(text)} || problems+=activate{number},")
    lines += [f"export {name}={quoted(value)}" for name, value in request.env.items()]
    body = "\n".join(lines)
    return (
        f"{{\n{body}\n}} </dev/null >/dev/null 2>&1\n"
        f"printf '{_BEGIN}=%s\\0' \"$problems\"\n/usr/bin/env -0\n"
    )


def parse(printed: str) -> tuple[dict[str, str], list[str]]:
    """Variables and problems out of what the script printed. Raises ValueError."""
    _, begin, rest = printed.partition(f"{_BEGIN}=")
    problems, _, variables = rest.partition("\0")
    pairs = [entry.partition("=") for entry in variables.split("\0") if "=" in entry]
    if not begin or not pairs:
        raise ValueError("python.activate or a module ended the shell")
    made = {name: value for name, _, value in pairs if name not in _OF_OUR_BASH}
    return made, [problem for problem in problems.split(",") if problem]


def judge(request: Request, problems: list[str]) -> Iterator[Row]:
    """Did modules and activation work?"""
    if "workdir" in problems:
        advice = "Make the folder, or mend workdir: in the job spec; the job would end at once."
        yield fail(NAME, f"workdir {request.workdir} cannot be entered", advice)
    if "module" in problems:
        names = " ".join(request.modules)
        advice = "Look with: module avail; then mend modules.load in the site file."
        yield fail(NAME, f"module load {names} failed; the job would end at once", advice)
    if "profile" in problems:
        names = " ".join(request.profile_modules)
        advice = "Look with: module avail; then mend modules.profile_load in the site file."
        yield warn(NAME, f"module load {names} failed; jobs go on without it", advice)
    if any(problem.startswith("activate") for problem in problems):
        advice = "Run the text by hand; where its last command merely tests something, ignore this."
        yield warn(NAME, "python.activate ended with an error; jobs go on", advice)
    asked = [
        *(["modules"] if request.modules or request.profile_modules else []),
        *(["python.activate"] if request.activations else []),
    ]
    if asked and not problems:
        yield ok(NAME, f"no error from {' and '.join(asked)}")


def find_python(request: Request, environ: Mapping[str, str]) -> tuple[Sequence[str], str]:
    """The training's interpreter as in ``Subject``, and why it is a guess ("" when it is none)."""
    if request.python:
        return (request.python,), ""
    if request.container == PYXIS:
        return (), "the training runs in a Pyxis container, which doctor does not enter"
    first = request.command[0] if request.command else ""
    is_python = bool(_PYTHON_RE.match(os.path.basename(first)))
    if request.container_words:
        assumed = "" if is_python else f"the command starts with {first}, so python3 was taken"
        runs = command.find(request.container_words[0], environ) is not None
        words = (*request.container_words, first if is_python else "python3")
        return (words if runs else ()), assumed
    if is_python and "/" in first:
        path = os.path.join(request.workdir or os.getcwd(), first)
        return ((path,) if os.access(path, os.X_OK) else ()), ""
    if is_python:
        found = command.find(first, environ)
        return ((found,) if found else ()), ""
    found = command.find("python", environ) or command.find("python3", environ)
    why = f"the command starts with {first}" if first else "no job spec and no --python"
    return ((found,) if found else ()), f"{why}, so python on PATH was looked at"
