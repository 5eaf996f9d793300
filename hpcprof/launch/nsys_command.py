"""The command lines of nsys for one recording. Starts nothing.

``extra`` is what a site or a job spec adds: as nsys takes it, split into words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

from hpcprof.launch.nsys import Interactive, NsysBuild

# each ends the training when the recording ends, or lets the job step end before the training
_ENDS_TRAINING = frozenset(
    ("--duration", "-d", "--duration-frames", "--kill", "--stop-on-exit", "-x", "--wait")
)
# the training would lose its environment, or be somebody else's; options in a file are not checked
_CHANGES_TRAINING = frozenset(
    ("--inherit-environment", "-n", "--env-var", "-e", "--run-as", "--command-file")
)
_TAKEN = frozenset(("--output", "-o", "--session-new", "--session", "--force-overwrite", "-f"))
_CAPTURE_RANGE = frozenset(("-c", "--capture-range"))
_RANGE_END = frozenset(("--capture-range-end",))
# sampling costs processor time of the training
_QUIET = (("sample", "s", "none"), ("cpuctxsw", "", "none"))


class Commands(NamedTuple):
    """How one recording is made. Session names come last: a start that failed needs another."""

    nsys: str
    run: Sequence[str]  # nsys profile or nsys launch, without the application
    start: Sequence[str] = ()  # nsys start; () when ``run`` records by itself

    def run_argv(self, session: str) -> list[str]:
        """What the application's command comes behind."""
        return [*self.run, f"--session-new={session}"]

    def start_argv(self, session: str) -> list[str]:
        """Begins the recording of an ``nsys launch``."""
        return [*self.start, f"--session={session}"]

    def stop_argv(self, session: str) -> list[str]:
        """Ends a recording and writes it; the application goes on (tried with 2022.4)."""
        return [self.nsys, "stop", f"--session={session}"]


def profile(
    build: NsysBuild, stem: Path, traces: Sequence[str], extra: Sequence[str], *, window: bool
) -> tuple[Commands, list[str]]:
    """``nsys profile``, and warnings about what was left out of ``extra``.

    ``window``: it records from the training's cuProfilerStart to its cuProfilerStop. Not given on
    purpose: -f (two ranks of one name would overwrite each other silently), --duration and --kill
    (they end the training), the osrt threshold.
    """
    allowed, warnings = _allowed(extra)
    options = [option for option in allowed if option.full_name(build.options)]
    warnings += [
        f"nsys option {option} was left out: this nsys would refuse it (nsys profile --help)"
        for option in allowed
        if option not in options
    ]
    argv = [build.path, "profile", f"--trace={','.join(traces)}"]
    argv += _defaults(build.options, options)
    argv += _wait(build.options)
    argv += ["-o", _literal(stem)]
    if window:
        argv.append("--capture-range=cudaProfilerApi")
    has_end = any(option.is_one_of(_RANGE_END) for option in options)
    has_range = any(option.is_one_of(_CAPTURE_RANGE) for option in options)
    if (window or has_range) and not has_end:
        # the default, stop-shutdown, sends TERM to the training at the end of the range
        argv.append("--capture-range-end=stop")
    for option in options:
        argv += option.words
    return Commands(build.path, argv), warnings


def interactive(
    build: NsysBuild,
    found: Interactive,
    stem: Path,
    traces: Sequence[str],
    extra: Sequence[str],
) -> tuple[Commands, list[str]]:
    """``nsys launch`` and ``nsys start``, and warnings about what was left out of ``extra``.

    nsys takes some options at one of them and some at the other; each goes where the help text of
    the installed one lists it. Raises ValueError when this nsys has no sessions to control.
    """
    if "session-new" not in found.launch_options or "session" not in found.start_options:
        raise ValueError("this nsys has no sessions that can be started and stopped")
    options, warnings = _allowed(extra)
    run = [build.path, "launch", f"--trace={','.join(traces)}"]
    run += _wait(found.launch_options)
    start = [build.path, "start", *_defaults(found.start_options, options), "-o", _literal(stem)]
    for option in options:
        if option.full_name(found.launch_options):
            run += option.words
        elif option.full_name(found.start_options):
            start += option.words
        else:
            warnings.append(f"nsys option {option} was left out: nsys has none such for a window")
    return Commands(build.path, run, start), warnings


def has_capture_range(extra: Iterable[str]) -> bool:
    """True when ``extra`` lets the training say when recording begins."""
    return any(option.is_one_of(_CAPTURE_RANGE) for option in _options(extra))


class _Option(NamedTuple):
    """One option with its value, in one word or two."""

    words: Sequence[str]

    @property
    def name(self) -> str:
        """With its dashes, without its value; nsys takes -d1 too."""
        word = self.words[0]
        return word.split("=")[0] if word.startswith("--") else word[:2]

    @property
    def value(self) -> str:
        return "=".join(self.words).partition("=")[2]

    def __str__(self) -> str:
        return " ".join(self.words)

    def is_one_of(self, names: frozenset[str]) -> bool:
        """nsys takes the beginning of a long name for the name, unless it is one of its own."""
        name = self.name
        if name in names or not name.startswith("--") or name in _CAPTURE_RANGE:
            return name in names
        return len(name) > 2 and any(long.startswith(name) for long in names)

    def full_name(self, listed: Sequence[str]) -> str:
        """Its name as a help text lists it, without dashes; "" for an option nsys would refuse.

        nsys takes the beginning of one long name only for that name. See NsysBuild for what is in
        ``listed``.
        """
        name = self.name
        if not name.startswith("--"):
            return name[1:] if name[:1] == "-" and name[1:] in listed else ""
        bare = name[2:]
        if len(bare) > 1 and bare in listed and not bare.endswith("-"):
            return bare
        if any(n.endswith("-") and bare.startswith(n) and bare != n for n in listed):
            return bare
        begun = [n for n in listed if len(n) > 1 and n.startswith(bare)]
        # one that ends in a dash stands for several
        return begun[0] if len(begun) == 1 and not begun[0].endswith("-") else ""


def _options(extra: Iterable[str]) -> list[_Option]:
    found: list[list[str]] = []
    for word in extra:
        if found and not word.startswith("-"):
            found[-1].append(word)
        else:
            found.append([word])
    return [_Option(words) for words in found]


def _allowed(extra: Sequence[str]) -> tuple[list[_Option], list[str]]:
    """``extra`` without the options that would end the training or take the report elsewhere."""
    allowed: list[_Option] = []
    warnings: list[str] = []
    for option in _options(extra):
        shuts_down = option.is_one_of(_RANGE_END) and "shutdown" in option.value
        if shuts_down or option.is_one_of(_ENDS_TRAINING):
            warnings.append(f"nsys option {option} was left out: it can end the training")
        elif option.is_one_of(_CHANGES_TRAINING):
            warnings.append(f"nsys option {option} was left out: it changes how the training runs")
        elif option.is_one_of(_TAKEN):
            warnings.append(f"nsys option {option} was left out: hpcprof sets it itself")
        else:
            allowed.append(option)
    return allowed, warnings


def _defaults(listed: Sequence[str], options: Iterable[_Option]) -> list[str]:
    """Our values of options that nsys has and nobody has chosen; it refuses one given twice."""
    chosen = {option.full_name(listed) for option in options} - {""}
    return [
        f"--{name}={value}"
        for name, short, value in _QUIET
        if name in listed and not chosen & {name, short}
    ]


def _wait(listed: Sequence[str]) -> list[str]:
    """With nsys's default, a helper process left behind by the training blocks the job."""
    return ["--wait=primary"] if "wait" in listed else []


def _literal(stem: Path) -> str:
    """nsys substitutes %h, %p and %q{...} in a name, of an unset variable not at all."""
    return str(stem).replace("%", "%%")
