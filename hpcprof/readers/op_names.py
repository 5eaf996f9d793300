"""Which phase an operation of TensorFlow belongs to, by its name. Knows no file format.

A name is ``path:type``, as NVTX ranges and XPlane events of the executor carry it, for example
``StatefulPartitionedCall/gradient_tape/model/conv/Conv2D/Conv2DBackpropFilter:Conv2DBackpropFilter``.
The path has what the function calls and branches around it put before it, then its name scopes.

1. What moves data between replicas is allreduce: by type, or by Horovod's scopes. Before all else:
   MirroredStrategy's collectives stand in the optimizer's scope.
2. Waiting for the next batch, and checkpoints: by type.
3. Backward: the scope ``gradient_tape`` or ``gradients``; optimizer: its scope, or its types.
4. Names at the root say nothing; hooks may have seen who made them (``Training.op_origins``).
5. Everything else in the training function is forward: layers, losses, metrics.

``other`` is only what belongs to no part of a step. Wrong are unscoped names of which no hook saw
the origin: the body of a ``tf.custom_gradient`` then counts as forward, as does a tf.data function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hpcprof.readers.collective_names import collective_op
from hpcprof.readers.op_paths import GRADIENT_TAPE, OpPath, op_path
from hpcprof.trace.columns import (
    ALLREDUCE,
    BACKWARD,
    CHECKPOINT,
    COMPUTE,
    COMPUTE_PHASE,
    COPY,
    FORWARD,
    INPUT,
    INPUT_ACTIVITY,
    OPTIMIZER,
    OTHER,
)
from hpcprof.trace.model import Training

BY_ORIGIN = (BACKWARD, OPTIMIZER)  # keys of Training.op_origins that are phases; INPUT is another


class OpClass(NamedTuple):
    """What a name means. ``activity`` and ``replica`` are None where the name does not tell.

    ``op`` is which collective. ``is_background``: work beside the training, in tf.data's functions
    or XLA's compiler; it is in no phase of a step, whatever thread it runs on.
    """

    phase: str
    activity: str | None
    replica: int | None
    op_type: str
    layer: str | None = None
    op: str | None = None
    is_background: bool = False


# the start of a collective is its arrival; its end is not known, since it goes on asynchronously
_COLLECTIVE_TYPE_RE = re.compile(r"_?(?:Horovod|Collective|Nccl)[A-Z]")
# those of tf.distribute, which packs gradients around them
_STRATEGY_TYPE_RE = re.compile(r"_?(?:Collective|Nccl)[A-Z]")
_COLLECTIVE_SCOPE_RE = re.compile(r"Distributed\w*_(?:Allreduce|Allgather)|Horovod[A-Z]\w*")
_COLLECTIVE_OPS = {
    "CollectiveReduce": "allreduce",
    "CollectiveGather": "allgather",
    "CollectiveBcast": "broadcast",
    "CollectiveAllToAll": "alltoall",
    "CollectiveReduceScatter": "reducescatter",
}
_PACKING = frozenset(("ConcatV2", "SplitV", "Split", "Pack", "Unpack", "Reshape"))
_PACKING_AT_ROOT = frozenset(("ConcatV2", "SplitV"))
_WAIT_RE = re.compile(r"(?:IteratorGetNext|Optional)\w*")
# what feeds the iterators of several devices, on threads of its own
_FEEDING_RE = re.compile(r"MultiDeviceIterator\w*|RemoteCall|\w*Dataset(?:V\d)?")
_CHECKPOINT_RE = re.compile(r"(?:Save|Restore)(?:V2|Slices)?|MergeV2Checkpoints|ShardedFilename")
_OTHER_RE = re.compile(r"\w*Summary(?:V2)?|Print(?:V2)?|VarHandleOp|VarIsInitializedOp")
_PYTHON_RE = re.compile(r"(?:Eager)?PyFunc(?:Stateless)?")  # whatever the script does there
_UPDATE_TYPE_RE = re.compile(r"(?:Resource)?(?:Sparse)?Apply[A-Z]\w*|ResourceSparseApply\w*")
_CALL_RE = re.compile(r"(?:Stateful)?PartitionedCall|XlaLaunch(?:V2)?|_?XlaRun")
_XLA_WORK = frozenset(("XlaModule", "Thunk"))
_OPTIMIZERS = frozenset(
    (
        *("adam", "adamw", "adamax", "adagrad", "adadelta", "adafactor", "nadam", "sgd"),
        *("rmsprop", "ftrl", "lion", "lamb", "lars", "muon"),
        *("lossscaleoptimizer", "loss_scale_optimizer", "clip_by_global_norm", "global_norm"),
    )
)
_SUFFIX_RE = re.compile(r"_\d+\Z")
_REPLICA_RE = re.compile(r"replica_(\d+)\Z")
# MirroredStrategy updates the variables of replica k in the scope update_k, with a number behind
# it for each variable but the first
_UPDATE_RE = re.compile(r"update(?:_(\d+))?(?:_\d+)?\Z")


@dataclass(frozen=True)
class _Known:
    """What all names together, and the hooks, tell about each."""

    scopes: frozenset[str]
    layers: frozenset[str]
    origins: Mapping[str, frozenset[str]]
    has_replicas: bool
    twins: frozenset[str]  # what replicas other than the first have, without their scopes
    has_gradients: bool
    collective_scopes: frozenset[tuple[str, ...]]


def classify(names: Iterable[str], training: Training | None) -> list[OpClass]:
    """The class of each name, in their order. Give all names of a rank at once: they help."""
    paths = [op_path(name) for name in names]
    known = _known(paths, training)
    return [_class(path, known) for path in paths]


def _known(paths: list[OpPath], training: Training | None) -> _Known:
    training = training or Training()
    replicas = training.replicas or 1
    packed = [path for path in paths if _STRATEGY_TYPE_RE.match(path.op_type)]
    return _Known(
        scopes=_OPTIMIZERS | {scope.lower() for scope in training.optimizer_scopes},
        layers=frozenset(training.layers),
        origins={origin: frozenset(names) for origin, names in training.op_origins.items()},
        has_replicas=replicas > 1 or any(_has_replica_scope(path) for path in paths),
        twins=frozenset(_base(path) for path in paths if _has_replica_scope(path)),
        has_gradients=any(_is_gradient(path) for path in paths),
        collective_scopes=frozenset(path.parts[:-1] for path in packed),
    )


def _class(path: OpPath, known: _Known) -> OpClass:
    is_background = _is_background(path, known)
    phase = INPUT if is_background and not path.is_xla else _phase(path, known)
    activity = None if is_background else _activity(path, phase)
    replica = None if activity is None else _replica(path, known)
    return OpClass(
        phase=phase,
        activity=activity,
        replica=replica,
        op_type=path.op_type,
        layer=_layer(path, known) if phase in (FORWARD, BACKWARD) else None,
        op=_collective(path.op_type) if phase == ALLREDUCE else None,
        is_background=is_background,
    )


def _phase(path: OpPath, known: _Known) -> str:
    """The first that fits; the order is the docstring's."""
    if _is_communication(path, known):
        return ALLREDUCE
    by_type = _phase_of_type(path)
    if by_type:
        return by_type
    if _is_gradient(path):
        return BACKWARD
    if _is_update(path, known):
        return OPTIMIZER
    for origin in BY_ORIGIN:
        names = known.origins.get(origin, frozenset())
        if names and any(name in names for name in path.ancestry):
            return origin
    return _phase_at_root(path, known)


def _phase_at_root(path: OpPath, known: _Known) -> str:
    """The phase of a name that no scope explains and of which no hook saw the origin."""
    if path.op_type in _XLA_WORK:
        return COMPUTE_PHASE
    if path.is_xla:
        return OTHER
    if len(path.parts) > 1:
        return FORWARD
    if _CALL_RE.fullmatch(path.op_type):
        return COMPUTE_PHASE  # a whole function, compiled as one
    if path.op_type == "AddN" and known.has_gradients:
        return BACKWARD  # a variable that is used twice has two gradients to add
    if path.op_type in ("AssignSubVariableOp", "IsFinite"):
        return OPTIMIZER  # a plain update; the check of a scaled loss
    return OTHER if _PYTHON_RE.fullmatch(path.op_type) else FORWARD


def _phase_of_type(path: OpPath) -> str | None:
    if _WAIT_RE.fullmatch(path.op_type) or path.parts[:1] == ("iterator",):
        return INPUT
    if _CHECKPOINT_RE.fullmatch(path.op_type):
        return CHECKPOINT
    if "Initializer" in path.parts or _OTHER_RE.fullmatch(path.op_type):
        return OTHER
    return None


def _is_background(path: OpPath, known: _Known) -> bool:
    if path.is_xla:
        return path.op_type not in _XLA_WORK
    if _FEEDING_RE.fullmatch(path.op_type):
        return True
    if _is_gradient(path) or _is_update(path, known):
        return False
    # as it is: what tf.data runs is not called from anywhere
    return path.text in known.origins.get(INPUT, frozenset())


def _is_communication(path: OpPath, known: _Known) -> bool:
    if _COLLECTIVE_TYPE_RE.match(path.op_type):
        return True
    if any(_COLLECTIVE_SCOPE_RE.match(part) for part in path.parts):
        return True
    if path.op_type == "_Arg":
        return bool(re.match(r"distributed\w*_allreduce_", path.inner))
    scope = path.parts[:-1]
    is_surely = bool(scope) or path.inner in known.origins.get(OPTIMIZER, frozenset())
    packing = _PACKING if is_surely else _PACKING_AT_ROOT
    return scope in known.collective_scopes and path.op_type in packing


def _is_gradient(path: OpPath) -> bool:
    if path.op_type in ("_Arg", "_Retval"):
        return path.inner.startswith(("gradient_tape_", "gradients_"))
    return _has_gradient_scope(path.outer) or (not path.is_kept and _has_gradient_scope(path.parts))


def _has_gradient_scope(parts: tuple[str, ...]) -> bool:
    is_old = bool(parts) and _SUFFIX_RE.sub("", parts[0]) == "gradients"
    return is_old or GRADIENT_TAPE in parts


def _is_update(path: OpPath, known: _Known) -> bool:
    if path.op_type in ("_Arg", "_Retval"):
        words = path.inner.lower()
        return any(words.startswith(f"{scope}_") for scope in known.scopes)
    if _UPDATE_TYPE_RE.fullmatch(path.op_type):
        return True
    scopes = path.parts[:-1]
    if known.has_replicas and scopes and _UPDATE_RE.match(scopes[0]):
        return True
    return any(_SUFFIX_RE.sub("", part).lower() in known.scopes for part in scopes)


def _activity(path: OpPath, phase: str) -> str | None:
    if phase in (CHECKPOINT, OTHER):
        return None
    if phase == INPUT:
        return INPUT_ACTIVITY if _WAIT_RE.fullmatch(path.op_type) else None
    if _COLLECTIVE_TYPE_RE.match(path.op_type):
        return None  # the range is the enqueueing
    if path.op_type in ("_Send", "_Recv", "_HostSend", "_HostRecv"):
        return COPY
    is_packing = phase == ALLREDUCE and path.op_type in _PACKING
    return COPY if is_packing else COMPUTE


def _replica(path: OpPath, known: _Known) -> int | None:
    if not known.has_replicas:
        return 0
    for part in path.parts:
        match = _REPLICA_RE.match(part)
        if match:
            return int(match[1])
    for part in path.parts:
        match = _UPDATE_RE.match(part)
        if match and match[1]:
            return int(match[1])
    # replica 0 has no scope of its own, and neither has what all of them share
    return 0 if len(path.parts) > 1 or _base(path) in known.twins else None


def _has_replica_scope(path: OpPath) -> bool:
    return any(_REPLICA_RE.match(part) for part in path.parts)


def _base(path: OpPath) -> str:
    return _SUFFIX_RE.sub("", path.inner)


def _layer(path: OpPath, known: _Known) -> str | None:
    for part in path.parts[:-1]:
        for name in (part, _SUFFIX_RE.sub("", part)):  # Keras 3 numbers them when it traces again
            if name in known.layers:
                return name
    return None


def _collective(op_type: str) -> str | None:
    text = _SUFFIX_RE.sub("", re.sub(r"V\d+\Z", "", op_type.lstrip("_")))
    found = [op for name, op in _COLLECTIVE_OPS.items() if text.startswith(name)]
    return found[-1] if found else collective_op(text)
