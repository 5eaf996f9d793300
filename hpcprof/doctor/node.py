"""Is this node fit for a recording: scratch folder, start lock, limits, clock, container?"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcprof.doctor import command
from hpcprof.doctor.registry import NODE, check
from hpcprof.doctor.row import Row, fail, not_checked, ok, warn
from hpcprof.doctor.space import free_bytes, free_text
from hpcprof.doctor.subject import Subject
from hpcprof.launch.node_lock import NODE_LOCK, NodeLock
from hpcprof.launch.state_folder import open_scratch, profiler_obstacle

_ELSEWHERE = "Set TMPDIR in env: of the job spec to a folder on the node that is yours."
# nsys records into it and then makes the report; a few minutes of a rank take this and more
_LITTLE_BYTES = 10**9
_LOCK_SECONDS = 6.0
_FEW_FILES = 1024
_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
# read without entering the kernel
_FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase")
_OFFSET_RE = re.compile(r"^System time\s*:\s*([0-9.]+) seconds", re.MULTILINE)


@check("scratch folder", where=NODE, lane="node", instead=_ELSEWHERE)
def scratch(subject: Subject) -> Iterator[Row]:
    """Is there a node-local folder that nsys can work in?"""
    folder, reasons = open_scratch(None, subject.environ)
    if folder is None:
        yield fail("scratch folder", "; ".join(reasons), _ELSEWHERE)
        return
    obstacle = profiler_obstacle(folder) or _exec_obstacle(folder)
    if obstacle:
        yield fail("scratch folder", f"nsys cannot record: {obstacle}", _ELSEWHERE)
    elif reasons:
        yield warn("scratch folder", f"{reasons[0]}; {folder} is taken instead", _ELSEWHERE)
    elif free_bytes(folder) < _LITTLE_BYTES:
        advice = f"{_ELSEWHERE[:-1]} with more room: nsys records into it."
        yield warn("scratch folder", f"{folder}: {free_text(folder)}", advice)
    else:
        yield ok("scratch folder", f"{folder}, {free_text(folder)}")


def _exec_obstacle(folder: Path) -> str | None:
    """Why no program can be run in ``folder``; mount flags do not tell of security modules."""
    program = folder / f"doctor-{os.getpid()}"
    try:
        program.write_text("#!/bin/sh\nexit 0\n", encoding="ascii")
        program.chmod(0o700)
        said = command.run([str(program)], os.environ, seconds=5.0)
        return f"a program in {folder} ended with code {said.code}" if said.code else None
    except (OSError, command.NoAnswerError) as error:
        return f"no program can be run in {folder} ({error})"
    finally:
        with contextlib.suppress(OSError):  # what went wrong before is what matters
            program.unlink()


@check("start lock", where=NODE, lane="node")
def start_lock(subject: Subject) -> Iterator[Row]:
    """Can starts of nsys wait for each other on this node, whoever starts them?"""
    folder, _ = open_scratch(None, subject.environ)
    if folder is None:
        return
    deadline = time.monotonic() + _LOCK_SECONDS

    def pause(seconds: float) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(seconds)

    try:
        lock = NodeLock(folder, pause)
    except TimeoutError:
        advice = "Look who holds it with: fuser -v /dev/shm/hpcprof-nsys.lock"
        yield warn("start lock", f"{NODE_LOCK} was not free for {_LOCK_SECONDS:.0f} s", advice)
        return
    lock.release()
    if lock.problem or not os.access(NODE_LOCK, os.R_OK | os.W_OK):
        advice = "Ask its owner or the administrators to delete it or to open it for all (0666)."
        what = lock.problem or f"{NODE_LOCK} cannot be used; other users' starts are not waited for"
        yield warn("start lock", what, advice)
    else:
        yield ok("start lock", str(NODE_LOCK))


@check("limits", where=NODE, lane="node")
def limits(subject: Subject) -> Iterator[Row]:
    """Are enough files and locked memory allowed?"""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield judge_limits(files, locked, has_infiniband=Path("/sys/class/infiniband").is_dir())


def judge_limits(files: int, locked: int, *, has_infiniband: bool) -> Row:
    """Row about ulimit -n and ulimit -l (bytes); -1 is unlimited."""
    described = f"open files {_limit(files)}, locked memory {_limit(locked, 1024)} kB"
    if has_infiniband and locked != resource.RLIM_INFINITY:
        advice = "Ask the administrators for PropagateResourceLimitsExcept=MEMLOCK in slurm.conf."
        return warn("limits", f"{described}; InfiniBand wants it unlimited", advice)
    if files != resource.RLIM_INFINITY and files < _FEW_FILES:
        advice = f"Write ulimit -n {_FEW_FILES} into python.activate, or ask for a higher limit."
        return warn("limits", f"{described}; TensorFlow's input opens many files", advice)
    return ok("limits", described)


def _limit(value: int, unit: int = 1) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value // unit)


@check("clock", where=NODE, lane="node")
def clock(subject: Subject) -> Iterator[Row]:
    """Is the node's clock quick to read?"""
    try:
        source = _CLOCKSOURCE.read_text(encoding="ascii").strip()
    except OSError as error:
        advice = f"Read {_CLOCKSOURCE} by hand."
        yield not_checked("clock", f"clocksource unknown: {error.strerror}", advice)
    else:
        yield judge_clocksource(source)
    yield clock_is_set(subject.environ)


def judge_clocksource(source: str) -> Row:
    """Row about what the kernel counts time with."""
    if source in _FAST_CLOCKS:
        return ok("clock", f"clocksource {source}")
    return warn(
        "clock",
        f"clocksource {source}: each reading takes a microsecond or more",
        "Tell the administrators; the kernel gives the TSC up when it finds it unstable.",
    )


def clock_is_set(environ: Mapping[str, str]) -> Row:
    """Row about NTP, by the first of the usual programs that is there."""
    name = "clock is set"
    if command.find("chronyc", environ):
        said = command.run(["chronyc", "-n", "tracking"], environ, seconds=4.0)
        if said.code == 0:
            return judge_chrony(said.text)
    if command.find("timedatectl", environ):
        argv = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
        said = command.run(argv, environ, seconds=4.0)
        if said.code == 0 and said.last_line in ("yes", "no"):
            if said.last_line == "yes":
                return ok(name, "by NTP (timedatectl)")
            return _not_set(name, "not synchronised (timedatectl)")
    advice = "Nothing to do where the node agent compares the clocks (profile.agent)."
    return not_checked(name, "neither chronyc nor timedatectl tells", advice)


def judge_chrony(printed: str) -> Row:
    """Row out of chronyc tracking."""
    found = _OFFSET_RE.search(printed)
    if found is None or "Not synchronised" in printed:
        return _not_set("clock is set", "not synchronised (chronyc)")
    for milliseconds in (1, 20):
        if float(found[1]) < milliseconds / 1000:
            return ok("clock is set", f"by NTP, off by less than {milliseconds} ms (chronyc)")
    return _not_set("clock is set", f"off by {float(found[1]):.1g} s (chronyc)")


def _not_set(name: str, found: str) -> Row:
    advice = (
        "Keep profile.agent: auto, which compares the clocks itself, and tell the administrators."
    )
    return warn(name, found, advice)


@check("container", where=NODE, lane="node")
def container(subject: Subject) -> Iterator[Row]:
    """Is this a container?"""
    environ = subject.environ
    if "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ:
        kind = "Apptainer"
    elif os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        kind = "Docker or Podman"
    elif "ENROOT_ROOTFS" in environ or os.path.exists("/etc/enroot"):
        kind = "Enroot"
    else:
        return
    yield ok("container", f"{kind}: nsys, hpcprof and the output folder must be mounted in it")
