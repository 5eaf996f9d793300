"""Checks the options that users and sites add by hand to sbatch, srun and container runtimes.

One entry is one word that starts with "-", so that an entry can never become the program srun
starts. Options that would contradict the job spec, or kill the profiler, are refused with the
reason. Those of nsys: ``nsys_extras``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcprof.errors import UsageError

# what ends a word, or the rest of the line, for sbatch: it reads quotes, "\" and "#" by itself
_DIRECTIVE_ENDS = "\"'\\#"

_SIGNAL = (
    "the signal would go to every process of the training; it ends nsys, and the report is lost. "
    "Only --signal=B:NAME@SECONDS, which signals the batch shell alone, is safe"
)
_CONTAINER = (
    "hpcprof could not be found inside, and the training would not start. Use container: in the "
    "job spec"
)
_SBATCH_OWNED = {
    "--job-name -J": "use name: in the job spec, the run folder is called after it",
    "--nodes -N": "use nodes: in the job spec",
    "--ntasks -n": "use nodes: and ranks_per_node: in the job spec",
    "--ntasks-per-node": "use ranks_per_node: in the job spec",
    "--cpus-per-task -c": "use cpus_per_task: in the job spec",
    "--time -t": "use time: in the job spec",
    "--account -A": "use account: in the job spec",
    "--partition -p": "use partition: in the job spec",
    "--output -o": "hpcprof submit says where the log is",
    "--error -e": "hpcprof submit says where the log is",
    "--container*": _CONTAINER,
}
_SRUN_OWNED = {
    "--nodes -N": "use nodes: in the job spec",
    "--ntasks -n": "use nodes: and ranks_per_node: in the job spec",
    "--ntasks-per-node": "use ranks_per_node: in the job spec",
    "--cpus-per-task -c": "use cpus_per_task: in the job spec",
    "--export": "use env: in the job spec; without the job's variables no rank is recorded",
    "--multi-prog": "every rank must run the same command for its recording to start",
    "--signal": _SIGNAL,
    "--time -t": "use time: in the job spec; at a limit of srun's own the report is lost",
}
_SRUN_OUTSIDE_OWNED = {"--container*": _CONTAINER}
_SRUN_PROFILED_OWNED = {
    "--wait -W": "so long after the first rank has ended, Slurm would end the others, and what "
    "nsys is still writing is lost",
}
_CONTAINER_OWNED = {
    "--container-image": "use image: under container: in the job spec",
    "--container-mounts": "use mounts: under container: in the job spec",
    "--container-workdir": "use workdir: in the job spec",
}


def check_sbatch(options: Iterable[str], field: str) -> None:
    """Raise UsageError that names ``field`` for an option that must not be in a job script."""
    for option in options:
        _check_word(option, field)
        _, _, value = option.partition("=")
        to_batch_shell = value.partition(":")[0].upper() in ("B", "BR", "RB") and ":" in value
        if has_signal([option]) and not to_batch_shell:
            raise UsageError(f"{field}: {option}: {_SIGNAL}.")
        check_owned(option, field, _SBATCH_OWNED)


def has_signal(options: Iterable[str]) -> bool:
    """Whether one of these options of sbatch asks for a signal before the time limit."""
    return any(is_option(option.partition("=")[0], "--signal") for option in options)


def check_srun(options: Iterable[str], field: str, *, profiled: bool = False) -> None:
    """Raise UsageError that names ``field`` for an option that must not be given to srun.

    ``profiled``: a profiler may run in the ranks.
    """
    for option in options:
        _check_word(option, field)
        _check_srun_word(option, field, profiled=profiled)
        check_owned(option, field, _SRUN_OUTSIDE_OWNED)


def check_pyxis(options: Iterable[str], field: str, *, profiled: bool) -> None:
    """As check_srun, for those that say how the container is to be, too."""
    check_container(options, field)
    for option in options:
        _check_srun_word(option, field, profiled=profiled)


def check_container(options: Iterable[str], field: str) -> None:
    """Raise UsageError that names ``field`` for an option that would hide hpcprof or the image."""
    for option in options:
        _check_word(option, field)
        check_owned(option, field, _CONTAINER_OWNED)


def directive(option: str) -> str:
    """``option`` itself, when sbatch reads it as one word of a ``#SBATCH`` line.

    The last check before an option is written. Raises UsageError.
    """
    bad = [c for c in option if c.isspace() or not c.isprintable() or c in _DIRECTIVE_ENDS]
    if bad:
        raise UsageError(
            f"the sbatch option {option!r} cannot be written into a job script: {bad[0]!r} would "
            "end it there. Write it without spaces, quotes, backslashes and '#'."
        )
    return option


def _check_srun_word(option: str, field: str, *, profiled: bool) -> None:
    check_owned(option, field, _SRUN_OWNED)
    if profiled:
        check_owned(option, field, _SRUN_PROFILED_OWNED)


def _check_word(option: str, field: str) -> None:
    if not option.startswith("-") or option in ("-", "--"):
        raise UsageError(f"{field}: {option!r} is not an option; write it as --name=value.")
    if any(c.isspace() for c in option.partition("=")[0]):
        raise UsageError(f"{field}: {option!r} holds a space; write it as --name=value.")


def check_owned(option: str, field: str, owned: Mapping[str, str]) -> None:
    """Raise UsageError when ``option`` is one of ``owned``: spellings to the reason."""
    name = option.partition("=")[0]
    for spellings, reason in owned.items():
        if any(is_option(name, known) for known in spellings.split()):
            raise UsageError(f"{field}: {option} cannot be given here: {reason}.")


def is_option(name: str, known: str) -> bool:
    """Whether the command would take ``name`` for ``known``: ``-N4`` is -N, ``--sig`` --signal.

    ``known`` may stand for all that begin alike: ``--container*``.
    """
    if known.endswith("*"):
        return name.startswith(known[:-1])
    if known.startswith("--"):
        return name.startswith("--") and len(name) > 2 and known.startswith(name)
    return name[:2] == known
