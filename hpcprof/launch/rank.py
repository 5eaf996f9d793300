"""The story of one rank: who am I, where do I write, run the training, say how it went.

Whatever fails before the training costs the recording, never the training.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Mapping, NamedTuple, NoReturn, Sequence

from hpcprof.artifacts import run_record
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.errors import HpcprofError
from hpcprof.launch import environment, processes, rank_record, state_folder
from hpcprof.launch.processes import Fate, Program, say
from hpcprof.launch.rank_record import AlreadyRecordedError, RankRecord
from hpcprof.launch.signals import SignalInbox


class Request(NamedTuple):
    """What the command line asked for. ``profiler`` None: as the run's record says."""

    command: Sequence[str]
    run_dir: str | None
    profiler: str | None
    environ: Mapping[str, str]


class Scene(NamedTuple):
    """What a rank has to work with once it is recorded. ``umask`` is the application's."""

    request: Request
    settings: Mapping[str, Any]
    record: RankRecord
    inbox: SignalInbox
    umask: int


def run_rank(request: Request) -> Fate:
    """Run the training of this rank and record it; returns how the training ended.

    Does not return when the rank cannot be recorded: the training then takes this process's place.
    """
    inbox = SignalInbox()
    umask = os.umask(0o077)
    try:
        scene = _prepare(request, inbox, umask)
    except (HpcprofError, AlreadyRecordedError) as error:
        _run_unrecorded(request, inbox, umask, str(error))
    except OSError as error:
        _run_unrecorded(request, inbox, umask, f"the run folder cannot be written: {error}")
    fate = _run_recorded(scene)
    try:
        scene.record.complete(fate)
    except OSError as error:
        say(f"rank {scene.record.identity.rank}: the manifest could not be completed: {error}")
    return fate


def _prepare(request: Request, inbox: SignalInbox, umask: int) -> Scene:
    """Everything before the state folder. Raises HpcprofError, OSError, AlreadyRecordedError."""
    identity = RankEnv.from_environ(request.environ)
    if not request.run_dir:
        raise HpcprofError("no run folder: give --run-dir, or set HPCPROF_RUN_DIR")
    paths = ArtifactPaths(Path(request.run_dir).absolute())
    problem = None
    try:
        settings = run_record.launch_settings(paths.run_json)
    except HpcprofError as error:
        settings = dict(run_record.LAUNCH_DEFAULTS)
        problem = f"{error}; the defaults of launch are used"
    record = rank_record.claim(paths, identity, list(request.command), request.environ)
    if problem:
        record.warnings.append(problem)
    return Scene(request, settings, record, inbox, umask)


def _run_unrecorded(request: Request, inbox: SignalInbox, umask: int, why: str) -> NoReturn:
    """Become the application, exactly as without hpcprof."""
    say(f"{why.rstrip('.')}. The training runs without being recorded.")
    environ = environment.unrecorded(request.environ)
    processes.execute(Program(request.command, environ, umask), inbox)


def _run_recorded(scene: Scene) -> Fate:
    record = scene.record
    scratch, problems = state_folder.open_scratch(scene.settings["scratch"], scene.request.environ)
    record.warnings += problems
    state: Path | None = None
    try:
        if scratch is not None:
            state = state_folder.make_state_folder(scratch, record.identity)
        environ = _application_environ(scene, state)
        fate = None
        if _profiler_wanted(scene):
            fate = _run_profiled(scene, scratch, state, environ)
        return _run_plain(scene, environ) if fate is None else fate
    finally:
        if state is not None:
            record.warnings += state_folder.last_words(state)
            state_folder.remove(state)


def _application_environ(scene: Scene, state: Path | None) -> dict[str, str]:
    record = scene.record
    rank = record.identity.rank
    environ = environment.recorded(scene.request.environ, record.paths, rank, state)
    if state is None:
        record.warnings.append("no scratch folder: the training cannot import hpcprof's spans")
        return environ
    return environment.with_package(environ, state_folder.link_package(state))


def _profiler_wanted(scene: Scene) -> bool:
    """Whether this rank shall run under nsys; the reason goes into the record when not."""
    from hpcprof.launch.selection import is_selected

    if (scene.request.profiler or scene.settings["profiler"]) == "none":
        return False
    try:
        selected = is_selected(scene.settings["profile_ranks"], scene.record.identity)
    except HpcprofError as error:
        scene.record.warnings.append(str(error))
        selected = False
    if not selected:
        scene.record.state_reason = "this rank was not selected for profiling"
    return selected


def _run_profiled(
    scene: Scene, scratch: Path | None, state: Path | None, environ: Mapping[str, str]
) -> Fate | None:
    """Run under nsys; None when that did not start, with the reason in the record."""
    # imported late: a rank without nsys does not pay for it
    from hpcprof.launch import nsys_rank

    if scratch is None or state is None:
        scene.record.state_reason = "nsys needs a scratch folder and there is none"
        return None
    return nsys_rank.run(scene, scratch, state, environment.with_listener(environ))


def _run_plain(scene: Scene, environ: Mapping[str, str]) -> Fate:
    """Run the application as our child, without a profiler, and pass every signal on."""
    program = Program(scene.request.command, environ, scene.umask)
    pid = processes.spawn(program, scene.inbox)
    scene.record.application_pid = pid
    while True:
        fate = processes.reap(pid)
        if fate is not None:
            return fate
        received = scene.inbox.wait()
        # what the terminal sends, it sends to the application too: same process group
        if received is not None and not received.from_terminal:
            processes.send(pid, received.signum)
