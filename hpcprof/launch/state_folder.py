"""The node-local folders of the launcher: one per user for nsys, one per rank for its state.

Nothing here is an artifact: all of it is gone when the rank has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple

import hpcprof
from hpcprof.artifacts import rank_state
from hpcprof.artifacts.rank_env import RankEnv

# nsys writes the whole recording here before it moves it; below this it could not even start
_MIN_FREE_BYTES = 128 * 2**20
# sockaddr_un.sun_path holds 108 bytes; nsys adds a name like /8b41-99d3-c3a8-1236
_MAX_SOCKET_FOLDER_BYTES = 107 - 20


_ALIVE = "alive"  # locked as long as the launcher lives; names the node whose lock that is
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_held: list[int] = []  # descriptors of our locks; closed by the end of this process only
# another start may have our process id: in another PID namespace, or on another node
_MAX_NAMES = 9
_NAME_RE = re.compile(r"\A([^.]+)\.([^.]+)\.([0-9]+)\.([0-9]+)\Z")


class StateName(NamedTuple):
    """What the name of a state folder says. ``pid`` is the launcher's."""

    job: str
    step: str
    rank: int
    pid: int

    @classmethod
    def from_text(cls, name: str) -> StateName | None:
        """None when the folder is no state folder."""
        match = _NAME_RE.match(name)
        return cls(match[1], match[2], int(match[3]), int(match[4])) if match else None

    def __str__(self) -> str:
        return f"{self.job}.{self.step}.{self.rank}.{self.pid}"


def open_scratch(wanted: str | None, environ: Mapping[str, str]) -> tuple[Path | None, list[str]]:
    """The folder ``hpcprof-<uid>`` in the first usable place, and what was wrong with the others.

    Tried are ``wanted``, else $TMPDIR, then /tmp and /dev/shm. Raises nothing; (None, reasons)
    when there is no place at all.
    """
    places = [wanted or environ.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm"]
    reasons: list[str] = []
    for place in dict.fromkeys(places):
        folder = Path(os.path.expandvars(place)).absolute() / f"hpcprof-{os.getuid()}"
        try:
            _make_private(folder)
        except OSError as error:
            reasons.append(f"scratch folder {folder} cannot be used: {error.strerror or error}")
            continue
        return folder, reasons
    return None, reasons


def _make_private(folder: Path) -> None:
    """Create the folder with mode 0700, or check that the one there is ours and no link."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode):
            raise OSError("it is not a folder") from None
        if found.st_uid != os.getuid():
            raise OSError("it belongs to another user") from None
        if found.st_mode & 0o077:
            os.chmod(folder, 0o700)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError("it is not writable")


def profiler_obstacle(scratch: Path) -> str | None:
    """Why nsys could not work with ``scratch`` as its TMPDIR, None when it can."""
    space = os.statvfs(scratch)
    if space.f_flag & os.ST_NOEXEC:
        return f"{scratch} is mounted noexec; nsys runs its libraries from there"
    if space.f_bavail * space.f_frsize < _MIN_FREE_BYTES:
        return f"{scratch} has less than {_MIN_FREE_BYTES >> 20} MiB free; nsys records into it"
    if len(os.fsencode(scratch)) > _MAX_SOCKET_FOLDER_BYTES:
        return f"the path {scratch} is too long for the sockets that nsys makes in it"
    return None


def make_state_folder(scratch: Path, identity: RankEnv) -> Path:
    """Create ``<job>.<step>.<rank>.<pid>`` inside ``scratch``, ours until this process ends.

    A folder of that name is replaced when its launcher is dead; else ours gets a number more, as
    in ``77.1-2.0.4711``. Raises OSError, and leaves nothing behind then.
    """
    step = str(identity.slurm_step or 0)
    name = StateName(identity.job_id or "local", step, identity.rank, os.getpid())
    making = scratch / f".{name}.{os.urandom(4).hex()}"
    making.mkdir(mode=0o700)
    lock = None
    try:
        lock = _lock(making)
        folder = _free_place(scratch, name)
        # only now others see it: a folder without a lock would look abandoned
        os.rename(making, folder)
    except OSError:
        if lock is not None:
            os.close(lock)
        remove(making)
        raise
    if lock is not None:
        _held.append(lock)
    return folder


def _free_place(scratch: Path, name: StateName) -> Path:
    """A path that nobody uses. Raises OSError when there is none."""
    for number in range(1, _MAX_NAMES + 1):
        numbered = name if number == 1 else name._replace(step=f"{name.step}-{number}")
        folder = scratch / str(numbered)
        if os.path.lexists(folder) and _is_abandoned(folder / _ALIVE):
            remove(folder)  # the same process id, earlier
        if not os.path.lexists(folder):
            return folder
    raise OSError(errno.EEXIST, "other launchers have all names of this rank")


def _lock(folder: Path) -> int | None:
    """Descriptor of the lock that the kernel takes from us when we end, however that is.

    None where the file system has no locks, or no space: without ``alive`` nobody takes the folder
    for abandoned.
    """
    path = folder / _ALIVE
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, _this_node())
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # ENOSYS or ENOLCK, for example
        os.close(descriptor)
        path.unlink()
        return None
    return descriptor


def _this_node() -> bytes:
    """This node in this life of it; b"" when it cannot be told from others."""
    try:
        with open(_BOOT_ID, "rb") as stream:
            boot = stream.read().strip()
    except OSError:
        return b""
    return os.uname().nodename.encode(errors="replace") + b" " + boot if boot else b""


def abandoned(scratch: Path) -> Iterator[Path]:
    """State folders of launchers that were killed on this node. Raises nothing."""
    try:
        names = sorted(os.listdir(scratch))
    except OSError:
        return
    for name in names:
        folder = scratch / name
        if StateName.from_text(name) is not None and _is_abandoned(folder / _ALIVE):
            yield folder


def _is_abandoned(lock: Path) -> bool:
    """Whether the launcher of this lock ran here, and is dead.

    Nodes may share the folder without sharing locks (Lustre with localflock, NFS with local_lock):
    there another node's lock looks free, and its processes are not to be found either.
    """
    here = _this_node()
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # without a lock, or gone
    try:
        if not here or os.read(descriptor, len(here) + 1) != here:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def link_package(state: Path) -> Path:
    """A folder with this package and our ``sitecustomize``, for the application's PYTHONPATH.

    Never the folder that the package lies in: the packages of the analysis environment, or the
    ``tests`` of a checkout, would take the place of the user's own. Raises OSError.
    """
    package = Path(hpcprof.__file__).resolve().parent
    folder = state / "lib"
    folder.mkdir(mode=0o700)
    os.symlink(package, folder / "hpcprof")
    # without it (disk full) scripts that call annotate are recorded all the same
    with contextlib.suppress(OSError):
        _copy_whole(package / "annotate" / "sitecustomize.py", folder)
    return folder


def _copy_whole(source: Path, folder: Path) -> None:
    """Copy, or leave nothing: every Python of the job reads it. Raises OSError.

    A copy and no link, because those Pythons need not wait for the package's file system.
    """
    partial = folder / f"{source.name}.partial"
    partial.write_bytes(source.read_bytes())
    os.replace(partial, folder / source.name)


def last_words(state: Path) -> list[str]:
    """What annotate could not write into the rank folder, as warnings."""
    try:
        text = (state / rank_state.ANNOTATE_ERROR).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [f"annotate: {line.strip()}" for line in text.splitlines() if line.strip()]


def remove(state: Path) -> None:
    """Delete the state of a rank that has ended; what cannot be deleted stays."""
    import shutil

    shutil.rmtree(state, ignore_errors=True)
