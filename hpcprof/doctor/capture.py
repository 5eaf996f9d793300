"""The one-second capture: does a range pushed in the training's Python arrive in nsys's report?

Goes the whole way of a rank: ``hpcprof launch`` with its locks and fallbacks, nsys, importer,
export, and our own reader. Some versions of nvtx and nsys record nothing together, silently.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcprof.artifacts import manifest, rank_env
from hpcprof.artifacts.atomic import read_json, write_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.run_record import new_run_record
from hpcprof.doctor import command, programs
from hpcprof.doctor.nsys import build_of
from hpcprof.doctor.programs.ranges import RANGES
from hpcprof.doctor.registry import NODE, check
from hpcprof.doctor.row import FAIL, NOT_CHECKED, OK, Row, fail, not_checked, ok, warn
from hpcprof.doctor.subject import Request, Subject
from hpcprof.doctor.training import NVTX_ADVICE
from hpcprof.errors import HpcprofError
from hpcprof.launch import processes
from hpcprof.launch.nsys import NsysBuild
from hpcprof.launch.state_folder import open_scratch

_NAME = "capture"
_SECONDS = 35.0
_RANK = 0
# whose variables would make launch, nsys or MPI believe to be a part of the job around us
_FOREIGN = ("SLURM_", "PMI", "OMPI_", "MPI_", "HPCPROF_RUN_DIR")
_BY_HAND = "Run it again when the node is idle; see also the rows nsys sessions and scratch folder."
_MEND_OPTIONS = "Mend profile.extra or profile.trace in the job spec, or nsys: in the site file."
_LEFT_OUT = "nsys option "  # how a warning of launch about an option begins


class Captured(NamedTuple):
    """What came of it: versions, the rank's manifest, what the program answered, ranges found.

    ``ranges`` None: there is no report that could be read, and ``problem`` says why.
    """

    nsys: str
    record: Mapping[str, Any]
    answer: Mapping[str, Any]
    ranges: int | None
    problem: str


@check(_NAME, where=NODE, lane="nsys", limit_s=_SECONDS + 15, instead=_BY_HAND)
def capture(subject: Subject) -> Iterator[Row]:
    """Do NVTX ranges of the training's Python arrive in a report of this nsys?"""
    if subject.request.profiler == "none":
        return
    build = build_of(subject)
    if build is None or not subject.python:
        lacking = "no nsys" if build is None else "no Python of a training"
        yield not_checked(_NAME, f"{lacking} to try it with", "Mend the rows above first.")
        return
    scratch, reasons = open_scratch(None, subject.environ)
    if scratch is None:
        yield not_checked(_NAME, "; ".join(reasons), "Mend the scratch folder first.")
        return
    until = time.monotonic() + _SECONDS
    folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=scratch))
    try:
        row = judge(_record(subject, build, folder / "asked", until), subject)
        request = subject.request
        least = request._replace(nsys_trace=["nvtx"], nsys_extra=[])
        if row.state == FAIL and options_of(request) != options_of(least):
            # was it the pair, or what else the job would ask of nsys?
            subject = subject._replace(request=least)
            try:
                plain = judge(_record(subject, build, folder / "plain", until), subject)
            except command.NoAnswerError as error:
                plain = not_checked(_NAME, str(error), _BY_HAND)
            row = judge_options(row, plain, request)
        yield row
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def options_of(request: Request) -> dict[str, list[str]]:
    """What a job would ask of nsys, and our ranges in any case."""
    others = [kind for kind in request.nsys_trace if kind != "nvtx"]
    return {"nsys_trace": ["nvtx", *others], "nsys_extra": [*request.nsys_extra]}


def _record(subject: Subject, build: NsysBuild, folder: Path, until: float) -> Captured:
    """Run the program under ``hpcprof launch``. Raises NoAnswerError, HpcprofError, OSError."""
    paths = ArtifactPaths(folder / "run")
    paths.root.mkdir(parents=True)
    record = new_run_record(name="doctor", strategy="custom", world_size=1)
    record["launch"].update(profiler="nsys", nsys_path=build.path, agent="none")
    record["launch"].update(options_of(subject.request))
    write_json(paths.run_json, record)
    argv = [sys.executable, "-I", "-m", "hpcprof", "launch", "--run-dir", str(paths.root), "--"]
    argv += [*subject.python, "-c", programs.text_of("ranges")]
    mark = f"{os.getpid()}-{folder.parent.name}"
    environ = {
        **{n: v for n, v in subject.environ.items() if not n.startswith(_FOREIGN)},
        rank_env.LOCAL_RANK: str(_RANK),
        rank_env.LOCAL_WORLD_SIZE: "1",
        "HPCPROF_DOCTOR_CAPTURE": mark,
    }
    try:
        seconds = max(0.0, until - time.monotonic())
        said = command.run(argv, environ, seconds=seconds, cwd=str(folder))
    finally:
        # nsys's agent is a daemon; a launcher that was ended in time has ended it
        left = processes.with_environment(f"HPCPROF_DOCTOR_CAPTURE={mark}")
        processes.end(left, grace_seconds=1.0)
    written = read_json(paths.manifest(_RANK), "the record of the capture")
    answers = programs.answers(said.text) or [{"problem": said.last_line}]
    ranges, problem = _count(paths, build, folder, subject)
    return Captured(build.version, written, answers[0], ranges, problem)


def _count(
    paths: ArtifactPaths, build: NsysBuild, folder: Path, subject: Subject
) -> tuple[int | None, str]:
    """How many of our ranges the report holds, or why it cannot be read."""
    from hpcprof.readers import nsys_files, nsys_sqlite, nsys_tools

    recording = nsys_files.find_recording(paths, _RANK)
    if recording is None:
        return None, "nsys left no report"
    tools = nsys_tools.find_tools(build.path, subject.environ)
    try:
        with nsys_files.exported(recording, _RANK, folder, tools) as database:
            own = nsys_sqlite.read_export(database, None, None).own
    except HpcprofError as error:
        return None, str(error)
    return int(own["name"].astype(str).str.startswith("doctor ").sum()), ""


def judge(captured: Captured, subject: Subject) -> Row:
    """Row out of what came of the capture."""
    record, answer = captured.record, captured.answer
    if record.get("state") == manifest.NOT_PROFILED:
        said = "; ".join([str(record.get("state_reason")), *map(str, record.get("warnings", []))])
        advice = (
            "Trainings run unrecorded here: end hung nsys processes of yours, see nsys sessions."
        )
        return fail(_NAME, said, advice)
    if "problem" in answer:
        if "nvtx" not in str(answer["problem"]):
            advice = "Mend the training's Python first, see the rows on it."
            return not_checked(_NAME, f"the program failed: {answer['problem']}", advice)
        what = f"no ranges of ours: {answer['problem']}"
        if subject.assumed:
            return not_checked(_NAME, f"{what} ({subject.assumed})", subject.naming_advice)
        return warn(_NAME, what, NVTX_ADVICE)
    pair = f"nvtx {answer['nvtx']} and nsys {captured.nsys}"
    if captured.ranges is None:
        return fail(_NAME, f"{pair}: {captured.problem}", _BY_HAND)
    if captured.ranges == RANGES:
        what = f"{RANGES} of {RANGES} ranges arrived: {pair} fit"
        left_out = [text for text in record.get("warnings", []) if text.startswith(_LEFT_OUT)]
        if left_out:
            return warn(_NAME, f"{what}; {'; '.join(left_out)}", _MEND_OPTIONS)
        return ok(_NAME, what)
    if captured.ranges == 0:
        return fail(_NAME, f"{pair} do not fit: ranges are not recorded", NVTX_ADVICE)
    return fail(_NAME, f"{captured.ranges} of {RANGES} ranges arrived: {pair}", _BY_HAND)


def judge_options(asked: Row, plain: Row, request: Request) -> Row:
    """Row out of a capture with the job's options that failed, and of one without them."""
    if plain.state not in (OK, NOT_CHECKED):
        return plain
    kinds = ",".join(options_of(request)["nsys_trace"])
    options = " ".join([f"--trace={kinds}", *request.nsys_extra])
    without = "all ranges arrive" if plain.state == OK else plain.found
    what = f"with the job's options ({options}): {asked.found}; without them: {without}"
    return fail(_NAME, what, _MEND_OPTIONS)
