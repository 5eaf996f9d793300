"""The errors a user can meet. One sentence each: what, which file or rank, likely cause, next step.

HpcprofError                 anything hpcprof raises on purpose
├── UsageError               the request makes no sense                       exit code 2
├── InputError               a file or folder is missing or unreadable        exit code 3
└── EnvironmentLacksError    a program or package is not there                exit code 4
"""

from __future__ import annotations


class HpcprofError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 3


class UsageError(HpcprofError):
    """The request itself is wrong (options, job spec, site file)."""

    exit_code = 2


class InputError(HpcprofError):
    """A file or folder is missing, unreadable, or not what it claims to be."""

    exit_code = 3


class EnvironmentLacksError(HpcprofError):
    """A program or package that this verb needs is not installed here."""

    exit_code = 4
