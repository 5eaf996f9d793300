"""Run at the start of every Python of the job: finds out whether this one is the training.

It is when it imports TensorFlow, Keras or Horovod and was not started by one that did. Then the
watchdog starts, and hooks wait for the packages that train: also in scripts that know nothing of
``annotate``. Spans are recorded from the first step on that a hook or a call of ``annotate`` marks.

Most Pythons of a job are not the training, so nothing is imported here before it is needed, not
even ``typing``: without TensorFlow all of this costs well below a millisecond.
"""

from __future__ import annotations

import os
import sys

# as in artifacts.rank_env, which would load typing
_RANK_FOLDER = "HPCPROF_RANK_FOLDER"
_OWNER = "HPCPROF_OWNER_PID"
_HOOKS = "HPCPROF_HOOKS"

_TRAINING_PACKAGES = frozenset(("tensorflow", "keras", "horovod"))

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Sequence


def begin() -> None:
    """Watch for the training's first import; again and again does no harm. May raise anything."""
    if not os.environ.get(_RANK_FOLDER):
        return
    if os.environ.get(_OWNER, str(os.getpid())) != str(os.getpid()):
        return  # started by the training: a data worker, a compiler, a shell script's python
    if is_started_by_multiprocessing(command_line()):
        return
    if not any(isinstance(finder, _FirstImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FirstImport())
        os.register_at_fork(after_in_child=_stop_looking)


def command_line() -> list[str]:
    """This process's arguments, the interpreter's own among them."""
    words = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if words is not None:
        return list(words)
    try:
        with open("/proc/self/cmdline", "rb") as stream:
            return [os.fsdecode(word) for word in stream.read().split(b"\0")]
    except OSError:
        return []


def is_started_by_multiprocessing(words: list[str]) -> bool:
    """Whether these are the arguments of a worker, a forkserver or a resource tracker.

    ``multiprocessing`` runs ``-c "from multiprocessing.spawn import …"``, joblib's loky
    ``-m joblib.externals.loky…``. A script's own option --multiprocessing is neither.
    """
    for option, value in zip(words[1:], words[2:]):
        if option == "-c":
            return value.startswith("from multiprocessing.")
        if option == "-m":
            return "loky" in value.split(".")
    return False


class _FirstImport:
    """A finder that finds nothing itself: it sees the training's first import, and goes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        if name not in _TRAINING_PACKAGES:
            return None
        # importlib.util.find_spec("tensorflow") only asks whether it is there
        caller = sys._getframe(2).f_code.co_name
        if not caller.startswith("_find_and_load"):
            return None
        _stop_looking()
        try:  # noqa: SIM105 (contextlib would have to be loaded)
            _become_the_training()
        except Exception:
            pass  # the training comes first, whatever it was
        return _found_by_others(name, path, target)


def _found_by_others(name: str, path: Sequence[str] | None, target: object) -> ModuleSpec | None:
    """Ask those that are there now: this import still goes through the old list, without hooks."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None


def _stop_looking() -> None:
    """Also in a forked child, where the parent is the training."""
    # a new list: an import may be iterating over the old one, and must skip none of it
    sys.meta_path = [finder for finder in sys.meta_path if not isinstance(finder, _FirstImport)]


def _become_the_training() -> None:
    """Keep the processes that this one starts silent, watch over its steps, and look for them."""
    os.environ[_OWNER] = str(os.getpid())
    # imported late: see above
    from hpcprof.annotate import watchdog

    watchdog.start()
    if os.environ.get(_HOOKS) != "0":
        from hpcprof.annotate import hooks

        hooks.install()
