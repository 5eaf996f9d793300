"""Makes short texts of a batch and of a variable, by which ranks are compared after the job.

Two texts are equal when what they were made of is, bit for bit (but for 1 in 2^64). That of a
variable also tells how far apart two are: see ``weight_sum``. Reads to the host, so it is for a few
steps only.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from typing import Any, Iterable, Iterator

_MOST_BYTES = 64 * 1024  # of a tensor of a batch
_MOST_TENSORS = 16  # of a batch
_MOST_ELEMENTS = 1024 * 1024  # of a variable that is read: 4 MiB
_SUMMED = 16 * 1024  # of them; evenly spaced, takes 1 ms
_DIGEST_BYTES = 8
_SUMS = 4
_EXACT = ("float32", "float64")  # of shorter types rounding alone could set ranks apart


def batch_digest(element: Any) -> str:
    """Of up to 64 KiB of each tensor of a batch; "" when there is none that can be read.

    Not of the first alone: it may be the batch's number, which is the same on all ranks.
    """
    heads = [_head(tensor) for tensor in itertools.islice(_tensors(element), _MOST_TENSORS)]
    content = b"".join(heads)
    return _digest(content) if content else ""


def chosen(variables: Iterable[Any]) -> list[Any]:
    """Up to three variables that are small and that training changes: two matrices, one other.

    A matrix starts with other values on each rank unless somebody takes care; a bias starts as
    zeros everywhere, and is the smallest.
    """
    known = [each for each in variables if _kind(each) in _EXACT]
    small = [each for each in known if 0 < _elements(each) <= _MOST_ELEMENTS]
    small.sort(key=_elements)
    matrices = [each for each in small if len(each.shape) > 1]
    others = [each for each in small if len(each.shape) <= 1]
    return matrices[:2] + others[:1]


def variable_name(variable: Any) -> str:
    """Keras 3's path, else TensorFlow's name."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))


def weight_sum(variable: Any) -> str:
    """The digest of a variable's values, their norm and four weighted sums of them.

    Of a large variable evenly spaced values stand for all.

    The sums are linear in the values, so that their change between two steps is the sum of the
    update; format "digest norm sum sum sum sum". May raise whatever TensorFlow does.
    """
    numpy = sys.modules["numpy"]
    values = variable.numpy()
    some = values.ravel()[:: -(-values.size // _SUMMED)]
    flat = some.astype(numpy.float64)
    positions = numpy.arange(flat.size, dtype=numpy.float64)
    sums = [float(flat @ numpy.cos((0.7390851 + k) * (positions + 1))) for k in range(_SUMS)]
    norm = float(numpy.sqrt(flat @ flat))
    return " ".join([_digest(some.tobytes()), *(f"{number:.17g}" for number in (norm, *sums))])


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def _tensors(element: Any) -> Iterator[Any]:
    """The arrays of a batch, which may be nested; a ragged or sparse one is taken apart."""
    if isinstance(element, dict):
        element = list(element.values())
    if isinstance(element, (list, tuple)):
        for each in element:
            yield from _tensors(each)
    elif hasattr(element, "values") and not callable(element.values):
        yield from _tensors(element.values)  # of replicas, or of a sparse tensor
    elif hasattr(element, "dtype") and hasattr(element, "shape"):
        yield element


def _head(tensor: Any) -> bytes:
    """The first bytes of its values; a tensor on a GPU is cut there, so that little is copied."""
    if hasattr(tensor, "tobytes"):
        return bytes(tensor.ravel()[: max(1, _MOST_BYTES // tensor.itemsize)].tobytes())
    if not type(tensor).__module__.startswith("tensorflow."):
        return b""  # of another framework; TensorFlow would be started to read it
    tensorflow = sys.modules["tensorflow"]
    if tensor.dtype == tensorflow.string:
        return b"".join(tensor.numpy().ravel().tolist())[:_MOST_BYTES]
    with tensorflow.device(tensor.device):
        flat = tensorflow.reshape(tensor, [-1])
        return bytes(flat[: max(1, _MOST_BYTES // tensor.dtype.size)].numpy().tobytes())


def _kind(variable: Any) -> str:
    kind = getattr(variable, "dtype", None)
    return str(getattr(kind, "name", kind))


def _elements(variable: Any) -> int:
    elements = 1
    for length in variable.shape:
        elements *= int(length or 0)
    return elements
