"""Saving of models and checkpoints: the phase ``checkpoint``, which lies beside the steps."""

from __future__ import annotations

from typing import Any

from hpcprof.annotate import automatic
from hpcprof.annotate.hooks import watching
from hpcprof.annotate.hooks.patching import Function, patch
from hpcprof.annotate.hooks.registry import NotForThisVersion
from hpcprof.artifacts import node_time, span_format

_is_saving = False
_now = node_time.monotonic_ns


def attach_models(module: Any) -> None:
    """Hook ``save`` and ``save_weights`` of Keras's models."""
    if not hasattr(module, "Model"):
        raise NotForThisVersion
    patch(module.Model, "save", _saving)
    patch(module.Model, "save_weights", _saving)


def attach_checkpoints(module: Any) -> None:
    """Hook ``tf.train.Checkpoint``."""
    patch(module.Checkpoint, "save", _saving)
    patch(module.Checkpoint, "write", _saving)


def attach_managers(module: Any) -> None:
    """Hook ``tf.train.CheckpointManager``."""
    patch(module.CheckpointManager, "save", _saving)


def _saving(original: Function) -> Function:
    def save(*args: Any, **kwargs: Any) -> Any:
        global _is_saving
        # in a thread of its own (a saver in the background), it keeps no step waiting
        if _is_saving or not automatic.may_mark() or not watching.is_training_thread():
            return original(*args, **kwargs)
        watching.interrupt()
        start = _now()
        _is_saving = True
        try:
            with automatic.hush():
                return original(*args, **kwargs)
        finally:
            _is_saving = False
            kind = span_format.KIND_PHASE
            automatic.record_beside_steps("checkpoint", start, _now(), kind)

    return save
