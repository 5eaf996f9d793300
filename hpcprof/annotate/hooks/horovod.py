"""Counts what the training asks of Horovod: gradients, other reductions, broadcasts.

Every collective of ``horovod.tensorflow`` goes through the operations of its library ``MPI_LIB``,
and the gradients of its optimizers and tapes through the function that
``_make_allreduce_grads_fn`` makes (0.19 to 0.28.1). Nothing that a script calls is replaced, so it
makes no difference whether it took names out of Horovod before. No collective is ever added.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from typing import Any, Callable

from hpcprof.annotate import horovod_calls as calls

_TAPE = "DistributedGradientTape"  # the name that Horovod's tape gives its gradients
# positions of arguments of _make_allreduce_grads_fn
_NAME, _COMPRESSION = 0, 3

_GATHERING = (
    "horovod_allgather",
    "horovod_grouped_allgather",
    "horovod_alltoall",
    "horovod_reducescatter",
    "horovod_grouped_reducescatter",
)
_BROADCASTING = (
    "horovod_broadcast",
    "horovod_broadcast_inplace",
    "horovod_broadcast_inplace_resource",
)

Function = Callable[..., Any]


class _Within(threading.local):
    """Whether this thread is handing over gradients just now."""

    gradients = 0


_within = _Within()


def attach(module: Any) -> None:
    """Count the calls of ``horovod.tensorflow``; raises AttributeError for another Horovod."""
    make, library = module._make_allreduce_grads_fn, module.mpi_ops.MPI_LIB
    operations = {
        "horovod_allreduce": _count_reduction,
        "horovod_grouped_allreduce": _count_reduction,
        **dict.fromkeys(_GATHERING, _count_gathering),
        **dict.fromkeys(_BROADCASTING, _count_broadcast),
    }
    originals = {name: getattr(library, name) for name in operations if hasattr(library, name)}
    if "horovod_allreduce" not in originals or "horovod_broadcast" not in originals:
        raise AttributeError("Horovod's library has no allreduce or no broadcast")
    for name, original in originals.items():
        setattr(library, name, _counting(original, operations[name]))
    module._make_allreduce_grads_fn = _counting_gradients(make)
    calls.begin_counting()


def _as_it_is(function: Function) -> Function:
    """Keep AutoGraph from rewriting what is called while a graph is built."""
    autograph = sys.modules["tensorflow"].autograph
    marked: Function = autograph.experimental.do_not_convert(function)
    return marked


def _counting(operation: Function, count: Callable[[Any], None]) -> Function:
    """The operation, with its first argument shown to ``count``."""

    @functools.wraps(operation)
    def counted(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # the training comes first, whatever it was
            count(args[0] if args else None)
        return operation(*args, **kwargs)

    return _as_it_is(counted)


def _counting_gradients(make: Function) -> Function:
    """``_make_allreduce_grads_fn``, whose functions count the gradients that they are given."""

    @functools.wraps(make)
    def make_counting(*args: Any, **kwargs: Any) -> Any:
        reduce = make(*args, **kwargs)
        is_tape = len(args) > _NAME and args[_NAME] == _TAPE
        calls.count(calls.TAPES if is_tape else calls.OPTIMIZERS)
        if len(args) > _COMPRESSION:
            calls.saw_compression(str(getattr(args[_COMPRESSION], "__name__", "")))

        @functools.wraps(make)
        def counted(gradients: Any, *rest: Any, **named: Any) -> Any:
            given = gradients
            if isinstance(given, (list, tuple)):
                calls.count(calls.GRADIENTS, sum(each is not None for each in given))
            else:
                calls.count(calls.GRADIENTS)
            _within.gradients += 1
            try:
                return reduce(gradients, *rest, **named)
            finally:
                _within.gradients -= 1

        return _as_it_is(counted)

    return make_counting


def _count_reduction(tensor: Any) -> None:
    if not _within.gradients:
        calls.count(calls.SCALARS if _is_one_number(tensor) else calls.ALLREDUCES)


def _count_gathering(tensor: Any) -> None:
    if not _within.gradients:
        calls.count(calls.GATHERS)


def _count_broadcast(value: Any) -> None:
    values = value if isinstance(value, (list, tuple)) else (value,)
    calls.count(calls.BROADCASTS, sum(_may_be_a_weight(each) for each in values))


def _may_be_a_weight(value: Any) -> bool:
    """No integers, as which objects are sent; handles of variables show no type of their own."""
    kind = getattr(value, "dtype", None)
    name = str(getattr(kind, "name", kind))  # TensorFlow's type, or a word of Keras 3's
    return "float" in name or name == "resource"


def _is_one_number(tensor: Any) -> bool:
    """Whether the shape says so; one that is not known may hold a gradient."""
    values = tensor if isinstance(tensor, (list, tuple)) else (tensor,)
    return all(_elements(each) == 1 for each in values)


def _elements(value: Any) -> int | None:
    shape: Any = getattr(value, "shape", ())
    if hasattr(shape, "num_elements"):
        elements: int | None = shape.num_elements()
        return elements
    return int(math.prod(shape))
