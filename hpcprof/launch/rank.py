"""The story of one rank: who am I, where do I write, run the training, say how it went.

Whatever fails before the training costs the recording, never the training.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, NoReturn, Sequence, TypeVar

from hpcprof.artifacts import run_record
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.errors import HpcprofError
from hpcprof.launch import (
    container,
    environment,
    gpus,
    instruments,
    processes,
    rank_record,
    state_folder,
)
from hpcprof.launch.orphans import end_orphans
from hpcprof.launch.processes import Fate, Program, say
from hpcprof.launch.rank_messages import RankMessages
from hpcprof.launch.rank_record import AlreadyRecordedError, RankRecord
from hpcprof.launch.signals import SignalInbox

# between two looks for messages of a rank without profiler; its end and signals wake us at once
_LOOK_SECONDS = 1.0

T = TypeVar("T")

# where a manifest does not say it any more: where a report has been left, for example
_SAID_WARNINGS = 5


class Request(NamedTuple):
    """What the command line asked for. ``settings`` win over those of the run's record."""

    command: Sequence[str]
    run_dir: str | None
    environ: Mapping[str, str]
    settings: Mapping[str, Any]


class Application(NamedTuple):
    """What is run in the end, and its environment."""

    command: Sequence[str]
    environ: Mapping[str, str]

    def with_visible(self, folders: Sequence[Path]) -> Application:
        """The same, seeing ``folders`` also when it is a container."""
        return Application(*container.command(self.command, self.environ, folders))


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
    except Exception as error:
        _run_unrecorded(request, inbox, umask, f"this rank cannot be recorded: {error!r}")
    fate = _run_recorded(scene)
    try:
        scene.record.complete(fate)
    except Exception as error:  # the training's end is told all the same
        who = f"rank {scene.record.identity.rank}"
        say(f"{who}: the manifest could not be completed: {error}")
        for warning in scene.record.warnings[-_SAID_WARNINGS:]:
            say(f"{who}: {warning}")
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
    except Exception as error:  # a launch section that is no mapping, for example
        settings = dict(run_record.LAUNCH_DEFAULTS)
        what = str(error) if isinstance(error, HpcprofError) else f"{paths.run_json}: {error!r}"
        problem = f"{what}; the defaults of launch are used"
    settings.update(request.settings)
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
    folders = _folders(scene)
    if isinstance(folders, str):
        return _run_without_state(scene, folders)
    scratch, state = folders
    record.warnings += _tried(record, "a look for orphans", lambda: end_orphans(scratch), [])
    asking = _tried(
        record,
        "asking for GPUs",
        lambda: gpus.start(state, scene.request.environ, scene.inbox),
        None,
    )
    try:
        return _run_with_state(scene, scratch, state)
    finally:
        _tried(record, "cleaning up", lambda: _clean_up(record, state, asking), None)


def _folders(scene: Scene) -> tuple[Path, Path] | str:
    """The scratch folder and the state folder in it, or why there are none."""
    record = scene.record
    try:
        wanted = scene.settings["scratch"]
        scratch, problems = state_folder.open_scratch(wanted, scene.request.environ)
    except Exception as error:  # a scratch that is no text, for example
        return f"no scratch folder: {error!r}"
    record.warnings += problems
    if scratch is None:
        return "no scratch folder"
    try:
        return scratch, state_folder.make_state_folder(scratch, record.identity)
    except OSError as error:
        return f"no state folder in {scratch}: {error.strerror}"
    except Exception as error:
        return f"no state folder in {scratch}: {error!r}"


def _clean_up(record: RankRecord, state: Path, asking: int | None) -> None:
    record.warnings += state_folder.last_words(state)
    if asking is not None and processes.reap(asking) is None:
        processes.end({asking}, grace_seconds=0.0)  # a driver that hangs
    state_folder.remove(state)


def _tried(record: RankRecord, what: str, action: Callable[[], T], otherwise: T) -> T:
    """What ``action`` returns; whatever it raises is a warning, and never costs the training."""
    try:
        return action()
    except Exception as error:
        record.warnings.append(f"{what} failed: {error!r}")
        return otherwise


def _run_without_state(scene: Scene, why: str) -> Fate:
    """Run the application where nothing can be recorded but its end."""
    record = scene.record
    record.warnings.append(f"{why}: the training cannot import hpcprof's spans")
    environ = environment.recorded(scene.request.environ, record.paths, record.identity, None, 0)
    if _profiler_wanted(scene):
        record.not_profiled("nsys needs a scratch folder and there is none")
    return _run_plain(scene, Application(scene.request.command, environ), None)


def _run_with_state(scene: Scene, scratch: Path, state: Path) -> Fate:
    hang_after_s = _hang_after_s(scene)
    messages = RankMessages(scene.record, state, hang_after_s)
    package = _linked_package(scene, state)
    application = _application(scene, state, package, hang_after_s)
    plain = _with_recorder(scene, application, package)
    try:
        fate = None
        if _profiler_wanted(scene):
            fate = _run_profiled(scene, scratch, messages, application)
        return _run_plain(scene, plain, messages) if fate is None else fate
    finally:
        _tried(scene.record, "reading the last messages", messages.read, None)


def _run_profiled(
    scene: Scene, scratch: Path, messages: RankMessages, application: Application
) -> Fate | None:
    """Run the application under nsys; None when it has not been started."""
    try:
        # imported late: a rank without nsys does not pay for it
        from hpcprof.launch import nsys_rank
    except Exception as error:  # the file system of the package fails, for example
        scene.record.not_profiled(f"nsys cannot be used: {error!r}")
        return None
    listened = application._replace(environ=environment.with_listener(application.environ))
    return nsys_rank.run(scene, scratch, messages, listened)


def _linked_package(scene: Scene, state: Path) -> Path | None:
    """The folder by which the application imports hpcprof; None, with a warning, without one."""
    try:
        return state_folder.link_package(state)
    except OSError as error:
        scene.record.warnings.append(f"the training cannot import hpcprof's spans: {error}")
        return None


def _application(
    scene: Scene, state: Path, package: Path | None, hang_after_s: float
) -> Application:
    record, given = scene.record, scene.request.environ
    environ = environment.recorded(given, record.paths, record.identity, state, hang_after_s)
    if package is not None:
        environ = environment.with_package(environ, package)
    nothing = instruments.Instruments({}, [])
    asked = _tried(
        record,
        "instrumentation",
        lambda: instruments.wanted(scene.settings, record.identity, given),
        nothing,
    )
    record.warnings += asked.warnings
    return Application(scene.request.command, {**environ, **asked.variables})


def _with_recorder(scene: Scene, application: Application, package: Path | None) -> Application:
    """The application as it is run without nsys: our own recorder listens to its NVTX ranges."""
    environ = application.environ
    otherwise = dict(environ), instruments.not_used("see the warnings")
    environ, scene.record.recorder = _tried(
        scene.record,
        "the NVTX recorder",
        lambda: instruments.with_recorder(environ, package, scene.settings["recorder"]),
        otherwise,
    )
    return application._replace(environ=environ)


def _hang_after_s(scene: Scene) -> float:
    """Seconds without a step that are too many; 0: never."""
    try:
        return max(0.0, float(scene.settings["hang_after_s"] or 0))
    except (TypeError, ValueError, OverflowError):
        wrong = scene.settings["hang_after_s"]
        scene.record.warnings.append(f"hang_after_s: {wrong!r} is no number; no hang is noticed")
        return 0.0


def _profiler_wanted(scene: Scene) -> bool:
    """Whether this rank shall run under nsys; the reason goes into the record when not."""
    wanted = _is_profiler_asked_for(scene)
    if wanted:
        scene.record.state, scene.record.state_reason = None, ""
    else:
        scene.record.update()
    return wanted


def _is_profiler_asked_for(scene: Scene) -> bool:
    from hpcprof.launch.selection import is_selected

    if scene.settings["profiler"] == "none":
        return False
    try:
        selected = is_selected(scene.settings["profile_ranks"], scene.record.identity)
    except Exception as error:
        what = str(error) if isinstance(error, HpcprofError) else f"profile_ranks: {error!r}"
        scene.record.warnings.append(what)
        selected = False
    if not selected:
        scene.record.state_reason = "this rank was not selected for profiling"
    return selected


def _run_plain(scene: Scene, application: Application, messages: RankMessages | None) -> Fate:
    """Run the application as our child, without a profiler, and pass every signal on."""
    record = scene.record
    folders = [record.paths.root] + ([] if messages is None else [messages.state])
    shown = _tried(record, "a container", lambda: application.with_visible(folders), application)
    program = Program(shown.command, shown.environ, scene.umask)
    try:
        pid = processes.spawn(program, scene.inbox)
    except OSError as error:
        why = f"no process for the training beside ours: {error.strerror}"
        record.warnings.append(why)
        record.update()
        _run_unrecorded(scene.request, scene.inbox, scene.umask, why)
    record.application_pid = pid
    is_heard = messages is not None
    while True:
        fate = processes.reap(pid)
        if fate is not None:
            return fate
        received = scene.inbox.wait(_LOOK_SECONDS if is_heard else None)
        # what the terminal sends, it sends to the application too: same process group
        if received is not None and not received.from_terminal:
            processes.send(pid, received.signum)
        if messages is not None and is_heard:
            is_heard = _hear(record, messages)


def _hear(record: RankRecord, messages: RankMessages) -> bool:
    """Look for messages; False when that cannot be done any more."""
    try:
        messages.look()
        messages.answer("ok: this rank is not recorded")
    except Exception as error:  # signals and exit code of the training are still to be passed on
        record.warnings.append(f"messages of the training are not heard any more: {error!r}")
        return False
    return True
