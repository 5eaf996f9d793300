"""``hpcprof launch --ranks N``: all ranks of a run on this machine, without Slurm."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from hpcprof import resources
from hpcprof.artifacts import atomic, rank_env, run_record
from hpcprof.artifacts.paths import RUN_FOLDER_MODE, ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.launch import processes
from hpcprof.launch.processes import Fate, Program, say
from hpcprof.launch.signals import ENDING, Received, SignalInbox

DEFAULT_OUTPUT = Path("hpcprof-runs")
# as srun --kill-on-bad-exit: time to end by themselves, then TERM, then KILL
GRACE_SECONDS = 10.0
_TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024
_POLL_SECONDS = 0.2

# -I keeps the user's current folder out of the launcher's imports; the package is then not found
# by itself in a checkout
_START = (
    "import sys; sys.path.append({root!r}); from hpcprof.__main__ import main; sys.exit(main())"
)


class _Rank(NamedTuple):
    rank: int
    pid: int


def run_local(
    command: Sequence[str],
    *,
    ranks: int,
    run_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    strategy: str = "custom",
    settings: Mapping[str, Any] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> tuple[Path, int]:
    """Run ``ranks`` copies of ``command`` and record each; returns the run folder and exit code.

    The run folder is ``run_dir``, else a new one in ``output`` (default ./hpcprof-runs).
    ``settings`` are those of launch that differ from ``run_record.LAUNCH_DEFAULTS``. The exit code
    is that of the rank that failed first, else 0. Rank 0 prints as usual, the others into
    output.log of their folder. Raises InputError when the run folder cannot be made.
    """
    label = _label(name or os.path.basename(command[0]))
    parent = DEFAULT_OUTPUT if output is None else Path(output)
    folder = parent / _folder_name(label) if run_dir is None else Path(run_dir)
    paths = ArtifactPaths(folder.absolute())
    _make_run_folder(paths, label, strategy, ranks, settings or {})
    environ = {**os.environ, rank_env.LOCAL_WORLD_SIZE: str(ranks)}
    inbox = SignalInbox()
    umask = os.umask(0o077)
    reserved = [_reserve_port() for _ in range(ranks)] if strategy == "multiworker" else []
    workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in reserved]
    for one in reserved:
        one.close()  # free for the training from here on; it binds within the second
    try:
        running = []
        for rank in range(ranks):
            environ[rank_env.LOCAL_RANK] = str(rank)
            if workers:
                environ["TF_CONFIG"] = _tf_config(workers, rank)
            running.append(_start(paths, rank, command, environ, inbox, umask))
        code = _wait(paths, running, inbox)
    finally:
        os.umask(umask)
        inbox.close()
    return paths.root, code


def _label(text: str) -> str:
    """A name that is safe as part of a folder name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"


def _folder_name(label: str) -> str:
    return f"{label}-local-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"


def _make_run_folder(
    paths: ArtifactPaths, name: str, strategy: str, ranks: int, settings: Mapping[str, Any]
) -> None:
    """Create the folder and run.json. Raises InputError."""
    record = run_record.new_run_record(name=name, strategy=strategy, world_size=ranks)
    record["launch"].update(settings)
    try:
        os.makedirs(paths.root, RUN_FOLDER_MODE, exist_ok=True)
        if paths.run_json.exists():
            raise InputError(
                f"{paths.root} holds a run already, and a run is never overwritten. "
                "Give another --run-dir, or leave it out."
            )
        atomic.write_json(paths.run_json, record)
    except OSError as error:
        raise InputError(f"the run folder {paths.root} cannot be made: {error}") from None


def _reserve_port() -> socket.socket:
    """A socket that holds a free port, so that the ranks get different ones."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.bind(("127.0.0.1", 0))
    return holder


def _tf_config(workers: Sequence[str], rank: int) -> str:
    """TF_CONFIG of MultiWorkerMirroredStrategy (tensorflow.org, Multi-worker training)."""
    return json.dumps(
        {"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": rank}}
    )


def _start(
    paths: ArtifactPaths,
    rank: int,
    command: Sequence[str],
    environ: Mapping[str, str],
    inbox: SignalInbox,
    umask: int,
) -> _Rank:
    """Start the per-rank launcher. Ranks other than 0 print into their own file."""
    argv = [sys.executable, "-I", "-c", _START.format(root=resources.import_root())]
    argv += ["launch", "--run-dir", str(paths.root), "--", *command]
    output = None
    if rank:
        folder = paths.rank_folder(rank)
        os.makedirs(folder, RUN_FOLDER_MODE, exist_ok=True)
        output = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        program = Program(argv, environ, umask, output=output)
        return _Rank(rank, processes.spawn(program, inbox))
    finally:
        if output is not None:
            os.close(output)


class _Supervision:
    """The ranks that still run, and what happens to them once one has failed."""

    def __init__(self, paths: ArtifactPaths, running: Sequence[_Rank]) -> None:
        self.left = list(running)
        self.exit_code = 0
        self._paths = paths
        self._term_at = self._kill_at = float("inf")

    def pass_on(self, received: Received) -> None:
        """Give a signal to every rank; the terminal has given them its own already."""
        if not received.from_terminal:
            for one in self.left:
                processes.send(one.pid, received.signum)
        if received.signum in ENDING:
            self.exit_code = self.exit_code or 128 + received.signum

    def collect_ended(self) -> None:
        """Take ended ranks off the list; the first that failed sets the clock for the others."""
        for one in tuple(self.left):
            fate = processes.reap(one.pid)
            if fate is None:
                continue
            self.left.remove(one)
            if fate.code and not self.exit_code:
                self.exit_code = fate.code
                self._term_at = time.monotonic() + GRACE_SECONDS
                _show_failure(self._paths, one.rank, fate, len(self.left))

    def end_late_ones(self) -> None:
        """TERM, and later KILL, when their time is up."""
        now = time.monotonic()
        if now > self._term_at:
            self._term_at, self._kill_at = float("inf"), now + GRACE_SECONDS
            for one in self.left:
                processes.send(one.pid, signal.SIGTERM)
        if now > self._kill_at:
            self._kill_at = float("inf")
            for one in self.left:
                _kill(one.pid)


def _wait(paths: ArtifactPaths, running: Sequence[_Rank], inbox: SignalInbox) -> int:
    """Wait for all ranks; ends the others when one fails. Returns the first failure's code."""
    supervision = _Supervision(paths, running)
    while supervision.left:
        received = inbox.wait(_POLL_SECONDS)
        if received is not None:
            supervision.pass_on(received)
        supervision.collect_ended()
        supervision.end_late_ones()
    return supervision.exit_code


def _kill(pid: int) -> None:
    """Kill a rank's launcher and all that it started, youngest first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = processes.parent(int(name))
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    found, position = [pid], 0
    while position < len(found):
        found += children.get(found[position], [])
        position += 1
    for one in reversed(found):
        processes.send(one, signal.SIGKILL)


def _show_failure(paths: ArtifactPaths, rank: int, fate: Fate, others: int) -> None:
    """Say which rank failed first, with the end of what it printed."""
    how = f"was ended by signal {fate.signum}" if fate.signum else f"ended with code {fate.code}"
    then = f"; the other {others} are ended in {GRACE_SECONDS:.0f} s" if others else ""
    say(f"rank {rank} {how}{then}")
    if rank:
        log = paths.rank_folder(rank) / "output.log"
        for line in _tail(log):
            say(f"rank {rank}: {line}")


def _tail(path: Path) -> list[str]:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            return stream.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []
