"""Checks the options that users and sites add by hand to nsys.

nsys takes every option with a value, as ``--name=value``, ``-xVALUE`` or two words, and any
unambiguous beginning of a long name. A word of any other kind would become the program that nsys
starts, or swallow it as its value. Where a fact needs a source: seen with nsys 2022.4.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcprof.errors import UsageError
from hpcprof.submit.extras import check_owned, is_option

_OWNED = {
    "--trace -t": "use trace: under profile: in the job spec",
    "--output -o": "hpcprof names the report of each rank",
    "--force-overwrite -f": "two ranks with one name would overwrite each other's report",
    "--session-new --session": "hpcprof names the session; with equal ones no training starts",
    "--duration -d": "nsys ends, or ends the training, when the time is over",
    "--duration-frames": "nsys ends the training after so many frames",
    "--delay -y": "every rank would start recording at another step; use steps: under profile:",
    "--start-later": "nothing would ever start the recording; use steps: under profile:",
    "--start-agent": "it is nsys's own, for the process that it starts beside the training",
    "--kill": "nsys could end while the training still runs, and Slurm then kills the training",
    "--stop-on-exit -x": "nsys would go on after the training, and the job would not end",
    "--wait": "nsys would wait for processes that the training leaves behind, and keep the job",
    "--inherit-environment -n": "the training would lose its environment",
    "--env-var -e": "use env: in the job spec",
    "--run-as": "the training would run as somebody else, and could not write its recording",
    "--command-file": "what is in that file could not be checked; give the options one by one",
    "--help -h": "nsys would print its help and not start the training",
}
_WINDOW_OWNED = {
    "--capture-range -c": "steps: under profile: says what is recorded",
    "--nvtx-capture -p": "steps: under profile: says what is recorded",
}
_RANGE_END = "--capture-range-end"


def check_nsys(options: Iterable[str], field: str, *, steps: str | None = None) -> None:
    """Raise UsageError that names ``field`` for an option that breaks profiling every rank.

    ``steps`` are those of the job spec, None when the whole run is recorded.
    """
    words = list(options)
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if not word.startswith("-"):
            _check_value(before, word, field)
            continue
        _check_form(word, field)
        name, has_value, value = word.partition("=")
        # a name of its own, which is also how another one begins
        if name != "--capture-range" and is_option(name, _RANGE_END):
            _check_range_end(word, value if has_value else after, field)
            continue
        if steps is not None:
            check_owned(word, field, _WINDOW_OWNED)
        check_owned(word, field, _OWNED)
        _check_has_value(word, after, field)


def _check_value(before: str, word: str, field: str) -> None:
    _refuse_substitution(word, field)
    if not _awaits_value(before):
        raise UsageError(
            f"{field}: {word!r} belongs to no option; nsys would start it in the place of the "
            "training. Write --name=value."
        )


def _check_form(word: str, field: str) -> None:
    _refuse_substitution(word, field)
    if word in ("-", "--"):
        raise UsageError(f"{field}: {word!r} is not an option; write it as --name=value.")
    if any(c.isspace() for c in word.partition("=")[0]):
        raise UsageError(f"{field}: {word!r} holds a space; write it as --name=value.")


def _check_has_value(word: str, after: str, field: str) -> None:
    if _awaits_value(word) and (not after or after.startswith("-")):
        raise UsageError(
            f"{field}: {word} has no value; nsys would take the next word for it, in the end the "
            "training's own command. Write --name=value."
        )


def _check_range_end(word: str, value: str, field: str) -> None:
    if value != "stop":
        raise UsageError(
            f"{field}: {word} cannot be given here: the training must go on when the recording "
            "ends (stop-shutdown, the default of nsys, ends it) and leave one report, under its "
            f"own name (repeat leaves others). Only {_RANGE_END}=stop does both."
        )


def _refuse_substitution(word: str, field: str) -> None:
    if "%q{" in word:
        raise UsageError(
            f"{field}: {word}: nsys fills in %q{{NAME}} in the name of a report only, and leaves "
            "it as it is where NAME is not set: ranks would share one name. hpcprof names the "
            "reports."
        )


def _awaits_value(word: str) -> bool:
    """Whether nsys takes the word after this one for its value."""
    if word.startswith("--"):
        return "=" not in word
    return word.startswith("-") and len(word) == 2
