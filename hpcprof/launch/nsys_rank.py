"""One rank under nsys: from the settings to the state in the manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from hpcprof.artifacts import manifest
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.artifacts.step_range import StepRange
from hpcprof.artifacts.window import CUDA, HOST, Window
from hpcprof.launch import (
    environment,
    instruments,
    nsys,
    nsys_command,
    nsys_result,
    nsys_start,
    state_folder,
)
from hpcprof.launch.nsys_recording import Recording
from hpcprof.launch.nsys_watch import Watch
from hpcprof.launch.processes import Fate, say
from hpcprof.launch.rank_messages import RankMessages

if TYPE_CHECKING:
    from hpcprof.launch.rank import Application, Scene


def run(
    scene: Scene, scratch: Path, messages: RankMessages, application: Application
) -> Fate | None:
    """Run the application under nsys; None when it has not been started and can be run plainly.

    What happened goes into the record.
    """
    record = scene.record
    record.profiler = {"name": "nsys", "fell_back": True}
    try:
        plan = _plan(scene, scratch, messages.state, application)
    except (OSError, ValueError) as error:
        _fall_back(scene, f"nsys cannot be used: {error}")
        return None
    except Exception as error:  # settings of the wrong kind, for example
        _fall_back(scene, f"nsys cannot be used: {error!r}")
        return None
    if isinstance(plan, str):
        _fall_back(scene, plan)
        return None
    try:
        running, problems = nsys_start.start(plan, scene.inbox)
    except nsys_start.StartInterruptedError as interruption:
        record.state, record.state_reason = manifest.NOT_PROFILED, str(interruption)
        return nsys_start.unstarted_fate(interruption)
    record.warnings += problems
    if running is None:
        _fall_back(scene, "nsys could not be started")
        return None
    record.recorder = instruments.not_used(instruments.NSYS_RECORDS)
    record.profiler.update(
        fell_back=False,
        argv=list(running.argv),
        session=running.session,
        start_seconds=round(running.seconds, 3),
    )
    if running.started is not None:
        record.application_pid = running.started.application_pid or None
    recording = Recording(plan, running, record, messages, scene.inbox)
    record.so_far = lambda: _so_far(recording)
    record.update()
    ending = Watch(running, scene.inbox, recording, record.application_ended).until_end()
    record.warnings += ending.warnings
    record.profiler["returncode"] = ending.nsys.code if ending.nsys else None
    course = nsys_result.Course(
        _never_began(scene, recording), recording.stopped, recording.problem
    )
    judged = nsys_result.result(record.paths, record.identity.rank, ending, course)
    record.warnings += judged.warnings
    record.so_far = None
    record.state, record.state_reason = judged.state, judged.reason
    return ending.application


def _so_far(recording: Recording) -> tuple[str | None, str]:
    """State and reason for the case that we are killed now; (None, "") as long as all is well."""
    if recording.problem is not None:
        return manifest.LOST, recording.problem
    if recording.stopped is None:
        return None, ""
    never = recording.never_began()
    return (manifest.EMPTY, never) if never else (manifest.PARTIAL, recording.stopped)


def _never_began(scene: Scene, recording: Recording) -> str | None:
    if nsys_command.has_capture_range(scene.settings["nsys_extra"]):
        return "the training never reached the range to record"
    return recording.never_began()


def _fall_back(scene: Scene, why: str) -> None:
    """The application will run plainly: note why, aloud when nsys was asked for by name."""
    record = scene.record
    record.not_profiled(why)
    if scene.settings["profiler"] == "nsys":
        say(f"rank {record.identity.rank}: {why}. The training runs without nsys.")


def _plan(
    scene: Scene, scratch: Path, state: Path, application: Application
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
    record.profiler.update(path=build.path, version=build.version)
    environ = application.environ
    has_gpu = nsys.node_has_gpu(environ)
    traces = nsys.trace_kinds(build, settings["nsys_trace"], environ, has_gpu=has_gpu)
    if not traces:
        return "nothing of nsys_trace can be recorded here"
    if "cuda" in traces and instruments.is_tf_profiled(environ):
        return "tf.profiler records this rank, and only one of the two can trace CUDA"
    commands, wanted = _commands(scene, scratch, build, traces)
    if wanted is not None:
        application = application._replace(environ=environment.with_window(environ, str(wanted)))
    nsys_folder = Path(os.path.realpath(path)).parent
    application = application.with_visible([record.paths.root, scratch, nsys_folder])
    return nsys_start.Plan(
        commands=commands,
        window=wanted,
        session=session_name(record.identity),
        scratch=scratch,
        state=state,
        log=record.paths.nsys_log(record.identity.rank),
        command=application.command,
        environ=application.environ,
        umask=scene.umask,
        node=record.identity.node,
    )


def _commands(
    scene: Scene, scratch: Path, build: nsys.NsysBuild, traces: Sequence[str]
) -> tuple[nsys_command.Commands, Window | None]:
    """How to record, and which steps; all of them where a window cannot be had."""
    record, extra = scene.record, scene.settings["nsys_extra"]
    stem = record.paths.nsys_stem(record.identity.rank)
    wanted = _window(scene, traces)
    if wanted is not None and wanted.mode == HOST:
        try:
            found = nsys.inspect_interactive(build.path, scratch)
            commands, warnings = nsys_command.interactive(build, found, stem, traces, extra)
        except (OSError, ValueError) as error:
            record.warnings.append(f"the whole run is recorded: {error}")
            wanted = None
        else:
            record.warnings += warnings
            return commands, wanted
    commands, warnings = nsys_command.profile(build, stem, traces, extra, window=wanted is not None)
    record.warnings += warnings
    return commands, wanted


def _window(scene: Scene, traces: Sequence[str]) -> Window | None:
    """The steps to record; None for all, or when the user has a capture range."""
    settings, warnings = scene.settings, scene.record.warnings
    text = settings["profile_steps"]
    if not text:
        return None
    if nsys_command.has_capture_range(settings["nsys_extra"]):
        warnings.append("nsys_extra has a capture range, so profile_steps is not obeyed")
        return None
    try:
        steps = StepRange.from_text(str(text))
    except ValueError as error:
        warnings.append(f"profile_steps: {error}; the whole run is recorded")
        return None
    # nsys listens to cuProfilerStart only where it traces cuda, and the call needs a GPU
    by_cuda = "cuda" in traces and nsys.has_usable_gpu(scene.request.environ)
    return Window(steps, CUDA if by_cuda else HOST)


def session_name(identity: RankEnv) -> str:
    """Session of this rank. Names are global on a node, also between jobs and users (2022.4)."""
    if identity.job_id:
        return f"hpcprof-{identity.job_id}-{identity.slurm_step or 0}-{identity.rank}"
    return f"hpcprof-{identity.node}-{os.getpid()}-{identity.rank}"
