"""Is Nsight Systems here, complete, and free to start?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcprof.doctor import command
from hpcprof.doctor.registry import NODE, check
from hpcprof.doctor.row import Row, fail, not_checked, ok, warn
from hpcprof.doctor.subject import Request, Subject
from hpcprof.launch import nsys
from hpcprof.launch.state_folder import open_scratch

_SECONDS = 8.0
_SHM = Path("/dev/shm")
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_VERDICT_RE = re.compile(r"^CPU Profiling Environment \((.*?)\): (.*)$", re.MULTILINE)
_NUMBER_RE = re.compile(r"\b20[0-9]{2}(?:\.[0-9]+)+")
_FIND_IT = (
    "Name the module that brings it as modules.profile_load, or its path as nsys.path, in a site "
    "file."
)
_IMPORTER_ADVICE = (
    "Run hpcprof collect on a machine with the full Nsight Systems of this version, or set "
    "nsys.path to one that has QdstrmImporter beside it."
)


def build_of(subject: Subject) -> nsys.NsysBuild | None:
    """The nsys that a rank here would use, None when there is none. Raises OSError, ValueError."""
    path = nsys.find_nsys(subject.request.nsys_path, subject.environ)
    scratch, _ = open_scratch(None, subject.environ)
    if path is None or scratch is None:
        return None
    return nsys.inspect_nsys(path, scratch)


@check("nsys", where=NODE, lane="nsys", limit_s=25.0)
def found(subject: Subject) -> Iterator[Row]:
    """Is nsys found, and do we understand its options?"""
    if subject.request.profiler == "none":
        advice = "Nothing to do; profile.profiler: auto records with nsys where it is found."
        yield not_checked("nsys", "profile.profiler is none in the job spec", advice)
        return
    try:
        build = build_of(subject)
    except (OSError, ValueError) as error:
        yield fail("nsys", f"cannot be used: {error}", _FIND_IT)
        return
    if build is None:
        yield _absent(subject)
        return
    unknown = [kind for kind in subject.request.nsys_trace if kind not in build.trace_kinds]
    what = f"{build.version}, {build.path}"
    if unknown:
        advice = f"Leave them out of trace:, or load an nsys that knows {', '.join(unknown)}."
        yield warn("nsys", f"{what}; does not know trace: {', '.join(unknown)}", advice)
    else:
        yield ok("nsys", what)


def _absent(subject: Subject) -> Row:
    request = subject.request
    where = f"{request.nsys_path} is no program" if request.nsys_path else "not on PATH"
    from hpcprof.readers import nsys_tools

    other = nsys_tools.find_tools(None, subject.environ)
    advice = f"Set nsys.path: {other.nsys} in a site file." if other else _FIND_IT
    if request.profiler == "nsys":
        return fail("nsys", f"{where}; trainings run, but profile.profiler: nsys wants it", advice)
    return warn("nsys", f"{where}; trainings run with our own marks only", advice)


@check("nsys importer", where=NODE, lane="nsys", limit_s=25.0, instead=_IMPORTER_ADVICE)
def importer(subject: Subject) -> Iterator[Row]:
    """Can recordings become reports here: is the importer of the same version there?"""
    build = build_of(subject)
    if build is None or subject.request.profiler == "none":
        return
    from hpcprof.readers import nsys_tools

    tools = nsys_tools.find_tools(build.path, subject.environ)
    path = tools.importer if tools else None
    if path is None:
        yield warn("nsys importer", f"none beside {build.path}", _IMPORTER_ADVICE)
        return
    said = command.run([str(path), "--version"], subject.environ, seconds=_SECONDS)
    yield judge_importer(build.version, said.text, str(path))


def judge_importer(version: str, printed: str, path: str) -> Row:
    """Row about the importer; a .qdstrm needs exactly the version that recorded it."""
    match = _NUMBER_RE.search(printed)
    if match is None:
        advice = f"Compare by hand: {path} --version and nsys --version."
        return not_checked("nsys importer", "it does not tell its version", advice)
    if match[0] != version:
        return warn("nsys importer", f"{match[0]}, but nsys is {version}", _IMPORTER_ADVICE)
    return ok("nsys importer", f"{match[0]}, {path}")


@check("CPU sampling", where=NODE, lane="nsys")
def cpu_sampling(subject: Subject) -> Iterator[Row]:
    """May nsys sample the CPU here? (Only extra options of the user ask for it.)"""
    try:
        level = _PARANOID.read_text(encoding="ascii").strip()
    except OSError:
        level = "unknown"
    verdicts = []
    path = nsys.find_nsys(subject.request.nsys_path, subject.environ)
    if path is not None:
        said = command.run([path, "status", "-e"], _nsys_environ(subject), seconds=_SECONDS)
        verdicts = _VERDICT_RE.findall(said.text)
    yield judge_sampling(level, verdicts, subject.request)


def judge_sampling(level: str, verdicts: Sequence[tuple[str, str]], request: Request) -> Row:
    """Row about perf_event_paranoid and what nsys makes of it, for the scopes asked for."""
    described = "; ".join(f"{scope}: {verdict}" for scope, verdict in verdicts)
    what = f"perf_event_paranoid {level}" + (f"; nsys says {described}" if described else "")
    wanted = sampling_options(request.nsys_extra)
    if not wanted:
        return ok("CPU sampling", f"{what}; not asked for")
    said = {scope: verdict.strip() for scope, verdict in verdicts}
    for option, scope in wanted.items():
        if said.get(scope, "OK") != "OK":
            advice = f"Leave {option} out, or ask for a lower kernel.perf_event_paranoid."
            return warn("CPU sampling", f"{what}; asked for: {option}", advice)
    unknown = [option for option, scope in wanted.items() if scope not in said]
    if unknown:
        advice = "Try nsys status -e by hand on that node."
        return not_checked("CPU sampling", f"{what}; nsys says nothing of {unknown[0]}", advice)
    return ok("CPU sampling", f"{what}; asked for: {', '.join(wanted)}")


def sampling_options(extra: Sequence[str]) -> dict[str, str]:
    """Those of nsys's options that let it sample the CPU, and the scope that each names.

    nsys takes an option and its value in one word or two, and the short one without "=", too.
    """
    words: list[str] = []
    for word in extra:
        if words and not word.startswith("-"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    found = {}
    for word in words:
        name, _, scope = word.partition("=")
        if word.startswith("-s"):
            name, scope = "-s", word[2:].lstrip("=")
        if name in ("-s", "--sample", "--cpuctxsw") and scope != "none":
            found[word] = scope
    return found


@check("nsys sessions", where=NODE, lane="nsys")
def sessions(subject: Subject) -> Iterator[Row]:
    """Is the table of sessions of this node in order, or has an earlier start hung?"""
    path = nsys.find_nsys(subject.request.nsys_path, subject.environ)
    if path is None:
        return
    tables = sorted(_SHM.glob("NSys-*"))
    foreign = [table for table in tables if not os.access(table, os.R_OK | os.W_OK)]
    if foreign:
        owner = foreign[0].stat().st_uid
        advice = f"Ask user {owner} or the administrators to delete it when no nsys runs there."
        what = f"{foreign[0]} belongs to user {owner} alone; see capture whether nsys starts"
        yield warn("nsys sessions", what, advice)
        return
    try:
        argv = [path, "sessions", "list"]
        said = command.run(argv, _nsys_environ(subject), seconds=_SECONDS)
    except command.NoAnswerError as error:
        names = " ".join(map(str, tables))
        advice = f"End nsys processes of yours on this node; when none runs at all: rm {names}"
        yield fail("nsys sessions", f"an earlier start hangs: {error}", advice.strip())
        return
    yield judge_sessions(said)


def judge_sessions(said: command.Said) -> Row:
    """Row out of nsys sessions list."""
    if said.code:
        advice = "Try nsys sessions list by hand on that node."
        return warn("nsys sessions", f"nsys sessions list said: {said.last_line}", advice)
    names = [words[-1] for line in said.text.splitlines()[1:] if (words := line.split())]
    if not names:
        return ok("nsys sessions", "none on this node")
    listed = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
    return ok("nsys sessions", f"{len(names)} on this node: {listed}")


def _nsys_environ(subject: Subject) -> dict[str, str]:
    """With the TMPDIR that ranks use: nsys keeps the lock of its table there."""
    scratch, _ = open_scratch(None, subject.environ)
    return {**subject.environ, **({"TMPDIR": str(scratch)} if scratch else {})}
