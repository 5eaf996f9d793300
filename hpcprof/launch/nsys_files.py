"""What nsys writes while it works: its recording, its log. Found here, judged in nsys_result."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcprof.launch import processes

_GENERATED_RE = re.compile(r"^Generated:\n((?:[ \t]+\S.*\n?)+)", re.MULTILINE)


def find_agent(mark: str) -> int | None:
    """Process id of nsys's background agent, which holds the recording; ``mark`` of its attempt."""
    for pid in processes.with_environment(mark):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                if b"--start-agent" in stream.read().split(b"\0"):
                    return pid
        except OSError:
            continue
    return None


def open_stream(agent: int | None) -> Path | None:
    """The recording that the agent has open; None before one begins."""
    if agent is None:
        return None
    try:
        for name in os.listdir(f"/proc/{agent}/fd"):
            target = os.readlink(f"/proc/{agent}/fd/{name}")
            if target.endswith(".qdstrm"):
                return Path(target)
    except OSError:
        pass  # the agent has ended, or closed it this moment
    return None


def generated(log: str) -> list[Path]:
    """The files that nsys says it has finished; [] when it was ended before.

    "Generating" alone means nothing: at a time limit it is printed before nsys is killed.
    """
    found = _GENERATED_RE.search(log)
    return [Path(line.strip()) for line in found.group(1).splitlines()] if found else []


def read_log(path: Path) -> str:
    """All that nsys printed; "" when there is no log."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def size(path: Path) -> int:
    """Size in bytes, 0 when there is no such file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
