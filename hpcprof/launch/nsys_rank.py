"""One rank under nsys: from the settings to the state in the manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Mapping

from hpcprof.artifacts import manifest
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.launch import nsys, nsys_result, nsys_start, state_folder
from hpcprof.launch.nsys_watch import Watch
from hpcprof.launch.processes import Fate, say

if TYPE_CHECKING:
    from hpcprof.launch.rank import Scene


def run(scene: Scene, scratch: Path, state: Path, environ: Mapping[str, str]) -> Fate | None:
    """Run the application under nsys; None when it has not been started and can be run plainly.

    ``environ`` is the application's. What happened goes into the record.
    """
    record = scene.record
    record.profiler = {"name": "nsys", "fell_back": True}
    try:
        plan = _plan(scene, scratch, state, environ)
    except (OSError, ValueError) as error:
        _fall_back(scene, f"nsys cannot be used: {error}")
        return None
    if isinstance(plan, str):
        _fall_back(scene, plan)
        return None
    record.profiler.update(path=plan.build.path, version=plan.build.version)
    try:
        running, problems = nsys_start.start(plan, scene.inbox)
    except nsys_start.StartInterruptedError as interruption:
        record.state_reason = str(interruption)
        return nsys_start.unstarted_fate(interruption)
    record.warnings += problems
    if running is None:
        _fall_back(scene, "nsys could not be started")
        return None
    record.profiler.update(
        fell_back=False,
        argv=list(running.argv),
        session=running.session,
        start_seconds=round(running.seconds, 3),
    )
    if running.started is not None:
        record.application_pid = running.started.application_pid or None
    ending = Watch(running, scene.inbox, record.application_ended).until_end()
    record.warnings += ending.warnings
    record.profiler["returncode"] = ending.nsys.code if ending.nsys else None
    on_request = nsys.has_capture_range(scene.settings["nsys_extra"])
    judged = nsys_result.result(record.paths, record.identity.rank, ending, on_request=on_request)
    record.warnings += judged.warnings
    record.state, record.state_reason = judged.state, judged.reason
    return ending.application


def _fall_back(scene: Scene, why: str) -> None:
    """The application will run plainly: note why, aloud when nsys was asked for by name."""
    record = scene.record
    record.state, record.state_reason = manifest.NOT_PROFILED, why
    if (scene.request.profiler or scene.settings["profiler"]) == "nsys":
        say(f"rank {record.identity.rank}: {why}. The training runs without nsys.")


def _plan(
    scene: Scene, scratch: Path, state: Path, environ: Mapping[str, str]
) -> nsys_start.Plan | str:
    """The plan of the start, or why there can be none. Raises OSError, ValueError."""
    record, settings = scene.record, scene.settings
    path = nsys.find_nsys(settings["nsys_path"], scene.request.environ)
    if path is None:
        return f"nsys was not found ({settings['nsys_path'] or 'not on PATH'})"
    obstacle = state_folder.profiler_obstacle(scratch)
    if obstacle is not None:
        return f"nsys cannot be used: {obstacle}"
    build = nsys.inspect_nsys(path, scratch)
    has_gpu = nsys.node_has_gpu(environ)
    traces = nsys.trace_kinds(build, settings["nsys_trace"], environ, has_gpu=has_gpu)
    if not traces:
        return "nothing of nsys_trace can be recorded here"
    identity, rank = record.identity, record.identity.rank
    session = nsys.Session(session_name(identity), record.paths.nsys_stem(rank))
    _, warnings = nsys.profile_argv(build, session, traces, settings["nsys_extra"])
    record.warnings += warnings
    return nsys_start.Plan(
        build=build,
        traces=traces,
        extra=settings["nsys_extra"],
        session=session,
        scratch=scratch,
        state=state,
        log=record.paths.nsys_log(rank),
        command=scene.request.command,
        environ=environ,
        umask=scene.umask,
        node=identity.node,
    )


def session_name(identity: RankEnv) -> str:
    """Session of this rank. Names are global on a node, also between jobs and users (2022.4)."""
    if identity.job_id:
        return f"hpcprof-{identity.job_id}-{identity.slurm_step or 0}-{identity.rank}"
    return f"hpcprof-{identity.node}-{os.getpid()}-{identity.rank}"
