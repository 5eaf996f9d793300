"""Zero-code instrumentation: attaches to TensorFlow, Keras and Horovod when they are imported.

What a hook sees becomes steps and phases (``automatic``) and a description of the training
(``training_seen``). A hook that cannot attach is noted, and everything else works; nothing is
raised into the training. Off with ``HPCPROF_HOOKS=0``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
from typing import Any, Callable

from hpcprof.annotate import automatic, training_notes, training_seen
from hpcprof.annotate.hooks.registry import HOOKS, Hook, NotForThisVersion
from hpcprof.artifacts import rank_env
from hpcprof.artifacts.training_record import ATTACHED, FAILED


def install() -> None:
    """Attach each hook when its module is imported. Call once, before the first of them is."""
    if os.environ.get(rank_env.HOOKS) == "0":
        return
    training_seen.begin()
    atexit.register(_write_what_was_found)
    try:
        register = importlib.import_module("wrapt").register_post_import_hook
    except Exception as error:  # TensorFlow needs it too, so it is there, or something is broken
        training_notes.put(hooks={"all": f"{FAILED}: wrapt cannot be imported: {error!r}"})
        return
    for hook in HOOKS:
        register(_attaching(hook), hook.trigger)


def _write_what_was_found() -> None:
    """Say also of a training without a step why there was none; others have said it by now."""
    if automatic.is_training_process() and not training_notes.seen("steps"):
        training_notes.write()


def _give_loader_back(module: Any) -> None:
    """Up to 1.14 wrapt leaves its own, which cannot read what else is in the package."""
    with contextlib.suppress(Exception):
        loader = module.__loader__
        if type(loader).__name__ == "_ImportHookChainedLoader":
            module.__loader__ = module.__spec__.loader = loader.loader


def _attaching(hook: Hook) -> Callable[[Any], None]:
    def attach(module: Any) -> None:
        _give_loader_back(module)
        try:
            hook.attach_to(module)
        except NotForThisVersion:
            return
        except Exception as error:
            training_notes.put(hooks={hook.name: f"{FAILED}: {hook.trigger}: {error!r}"})
            return
        if training_notes.seen("hooks").get(hook.name) is None:
            training_notes.put(hooks={hook.name: ATTACHED})

    return attach
