"""Runs scripts that call annotate as the launcher would start them, and reads what they wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import hpcprof
from hpcprof.artifacts import rank_env, span_format

RANK = 3
PREAMBLE = "from hpcprof import annotate\nimport os, sys, threading, time\n"
_OURS = "HPCPROF_"


class Record(NamedTuple):
    """One span record with its name; times in ns, ``kind`` is span_format's KIND_*."""

    name: str
    kind: int
    step: int
    start_ns: int
    end_ns: int
    thread: int


def environ(folder: Path | None, state: Path | None = None, **more: str) -> dict[str, str]:
    """The environment that the launcher gives rank 3."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    env["PYTHONPATH"] = os.path.dirname(os.path.dirname(hpcprof.__file__))
    if folder is not None:
        env.update({rank_env.RANK_FOLDER: str(folder), rank_env.RANK: str(RANK)})
    if state is not None:
        state.mkdir(exist_ok=True)
        env[rank_env.STATE_FOLDER] = str(state)
    return {**env, **more}


def run(
    code: str, folder: Path | None, state: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a training script in a process of its own; ``more`` goes into its environment."""
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + code],
        env=environ(folder, state, **more),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def notes(state: Path) -> list[str]:
    """What annotate left for the warnings of the manifest."""
    path = state / "annotate-error"
    return path.read_text().splitlines() if path.exists() else []


def header_pid(folder: Path) -> int:
    """The process that owns the span file of a rank folder."""
    head = (folder / "spans.bin").read_bytes()[: span_format.HEADER.size]
    return int(span_format.HEADER.unpack(head)[3])


def records(folder: Path) -> list[Record]:
    """All records of a rank folder but those that declare names, in the order written."""
    content = (folder / "spans.bin").read_bytes()
    names: dict[int, str] = {}
    found = []
    position = span_format.HEADER.size
    while position + span_format.BLOCK_BYTES <= len(content):
        fields = span_format.RECORD.unpack_from(content, position)
        start, end, name, step, thread, kind, value = fields
        position += span_format.BLOCK_BYTES
        if kind == span_format.KIND_NAME:
            names[name] = content[position : position + value].decode()
            position += span_format.text_block_count(value) * span_format.BLOCK_BYTES
        else:
            found.append(Record(names[name], kind, step, start, end, thread))
    return found


def steps(folder: Path) -> dict[int, Record]:
    """The records of steps by their number."""
    return {each.step: each for each in records(folder) if each.kind == span_format.KIND_STEP}
