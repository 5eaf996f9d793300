"""Types of the fields in job specs and site files: one line, several lines, a time limit, a name.

Each says in its error what would be right. Does not read files.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import AfterValidator

SCHEMA = 1

_ENV_NAME_RE = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")
# bash refuses to assign these
_ENV_NAMES_TAKEN = ("BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID")
_OUR_PREFIX = "HPCPROF_"
_MOUNT_RE = re.compile(r"\A/[^,:]*(:/[^,:]*(:[A-Za-z+]+)?)?\Z")
# Slurm's spellings: days-hours[:minutes[:seconds]], hours:minutes:seconds, minutes[:seconds]
_TIME_RE = re.compile(
    r"\A(?:(?P<days>\d+)-(?P<hours_1>\d+)(?::(?P<minutes_1>\d+)(?::(?P<seconds_1>\d+))?)?"
    r"|(?P<hours_2>\d+):(?P<minutes_2>\d+):(?P<seconds_2>\d+)"
    r"|(?P<minutes_3>\d+)(?::(?P<seconds_3>\d+))?)\Z",
    re.ASCII,
)
_SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def time_limit_s(text: str) -> int:
    """Seconds of a time limit in one of Slurm's spellings; "90" is 90 minutes, "1:30" is 90 s.

    Raises ValueError for anything else, and for zero, which Slurm takes as "no limit".
    """
    found = _TIME_RE.match(text)
    if not found:
        raise ValueError("is not a time limit; write 90 (minutes), 01:30:00 or 1-12:00:00")
    given = ((name.split("_")[0], number) for name, number in found.groupdict().items() if number)
    seconds = sum(_SECONDS[unit] * int(number) for unit, number in given)
    if seconds == 0:
        raise ValueError("is no limit at all to Slurm; give a time above zero")
    return seconds


def _time(value: str) -> str:
    time_limit_s(value)
    return value


def _text(value: str) -> str:
    bad = [c for c in value if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    if bad:
        raise ValueError(f"holds the control character {bad[0]!r}")
    return value


def _line(value: str) -> str:
    if len(_text(value).splitlines()) != 1 or value != value.strip():
        raise ValueError("must be one line of text, not empty, without space around it")
    return value


def _env_name(value: str) -> str:
    if not _ENV_NAME_RE.match(value):
        raise ValueError("is not a name that a shell can export (letters, digits, _)")
    if value in _ENV_NAMES_TAKEN:
        raise ValueError("is set by bash itself")
    if value.startswith(_OUR_PREFIX):
        raise ValueError(f"is hpcprof's own: it sets what begins with {_OUR_PREFIX} by itself")
    return value


def _env(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        if re.search(rf"\$\{{?{name}(?![A-Za-z0-9_])", value):
            raise ValueError(
                f"the value of {name} holds ${name} itself, and no shell fills it in; "
                f"write export {name}=...:${name} into python.activate"
            )
    return values


def _mount(value: str) -> str:
    if not _MOUNT_RE.match(value):
        raise ValueError("is not a mount; write /data, /data:/inside or /data:/inside:ro, each one")
    return value


def _schema(value: int) -> int:
    if value != SCHEMA:
        raise ValueError(f"this version of hpcprof reads schema {SCHEMA}")
    return value


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
Lines = tuple[Line, ...]
EnvName = Annotated[str, AfterValidator(_env_name)]
# what job scripts export, quoted; so PATH: "/x:$PATH" would leave the training without programs
Env = Annotated[dict[EnvName, Text], AfterValidator(_env)]
Mounts = tuple[Annotated[Line, AfterValidator(_mount)], ...]
TimeLimit = Annotated[str, AfterValidator(_time)]
SchemaVersion = Annotated[int, AfterValidator(_schema)]
