"""One line of the doctor's table: what was looked at, how it is, what was found, what to do."""

from __future__ import annotations

import json
from typing import NamedTuple

OK, WARN, FAIL, NOT_CHECKED = "OK", "WARN", "FAIL", "NOT CHECKED"
STATES = (FAIL, WARN, NOT_CHECKED, OK)  # the worst first

# slurmd passes lines of up to 1024 bytes on whole; longer ones of two nodes get mixed
MOST_BYTES = 1000
_MOST_CHARACTERS = 320


class Row(NamedTuple):
    """An answer of one check.

    ``advice`` is one sentence, "" only for OK. ``node`` is "" for the machine that asks.
    ``position`` orders rows as the checks are registered.
    """

    check: str
    state: str
    found: str
    advice: str = ""
    node: str = ""
    position: int = 0

    def to_line(self) -> str:
        """The row as one line of JSON, at most MOST_BYTES long: what is too long is cut."""
        row = self._replace(found=_shortened(self.found), advice=_shortened(self.advice))
        line = json.dumps(row)
        while len(line) >= MOST_BYTES:
            row = row._replace(found=row.found[:-20], advice=row.advice[:-20])
            line = json.dumps(row)
        return line

    @classmethod
    def from_line(cls, line: str) -> Row:
        """Read what ``to_line`` wrote. Raises ValueError."""
        fields = json.loads(line)
        if not isinstance(fields, list) or len(fields) != len(cls._fields):
            raise ValueError(f"not a row: {line[:80]!r}")
        check, state, found, advice, node, position = fields
        texts = (check, state, found, advice, node)
        if not all(isinstance(text, str) for text in texts) or state not in STATES:
            raise ValueError(f"not a row: {line[:80]!r}")
        return cls(check, state, found, advice, node, int(position))


def ok(check: str, found: str) -> Row:
    """Nothing to do."""
    return Row(check, OK, found)


def warn(check: str, found: str, advice: str) -> Row:
    """Works, but something will be missing or slow."""
    return Row(check, WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Row:
    """Does not work as it is."""
    return Row(check, FAIL, found, advice)


def not_checked(check: str, why: str, advice: str) -> Row:
    """Nobody knows; ``why`` says why not."""
    return Row(check, NOT_CHECKED, why, advice)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 2] + " …"
