"""Takes the name of a TensorFlow operation apart. Does not judge what it means.

What stands before an operation's own name scopes: the calls it was inlined from
(``StatefulPartitionedCall/…``), the branches (``cond/then/_0/cond/…``) and loops
(``while/body/_9/while/…``) it stands in, and what Grappler and the partitioning of a graph add.
"""

from __future__ import annotations

import re
from typing import NamedTuple

GRADIENT_TAPE = "gradient_tape"
_CALL_RE = re.compile(r"(?:Stateful)?PartitionedCall(?:_\d+)?\Z")
_BRANCHES = frozenset(("then", "else", "true", "false", "body", "cond"))
_NUMBER_RE = re.compile(r"_\d+\Z")
_EDGE_RE = re.compile(r"_\d+\Z")  # a name of nothing but a number
_REWRITERS = frozenset(
    ("Func", "ArithmeticOptimizer", "ConstantFolding", "GroupCrossDeviceControlEdges")
)
_XLA_RE = re.compile(r"(?:Xla[A-Z]\w*|Thunk):#")
_REPLICA_RE = re.compile(r"replica_\d+\Z")


class OpPath(NamedTuple):
    """An operation's name in pieces.

    ``text``: all of it but the type. ``parts``: its scopes and last its own name. ``outer``: the
    scopes in which the branch or loop stands that it belongs to, () when it is in none. ``inner``:
    ``parts`` without a replica's scope, as one text. ``ancestry``: the texts under which a graph
    may know it, or what it stands in. ``is_kept``: a loop computes it for its gradient to come.
    ``is_xla``: no operation, but a piece of XLA's work.
    """

    text: str
    parts: tuple[str, ...]
    op_type: str
    inner: str
    ancestry: tuple[str, ...]
    outer: tuple[str, ...] = ()
    is_kept: bool = False
    is_xla: bool = False


def op_path(name: str) -> OpPath:
    """Take ``path:type#attributes#`` apart; a name without a type has the type ""."""
    path, _, rest = name.partition(":")
    if _XLA_RE.match(name):
        return OpPath(path, (path,), path, path, (), is_xla=True)
    parts = [part for part in path.split("/") if part]
    if len(parts) > 1 and _EDGE_RE.match(parts[-1]):
        parts.pop()  # "Add/_5:_Send": an edge that was cut
    ancestry: list[str] = []
    parts = _without_wrapping(parts, ancestry)
    outer: tuple[str, ...] = ()
    is_kept = False
    while (index := _branch(parts)) > 0:
        scope, rest_of_it = parts[:index], parts[index + 2 :]
        ancestry += _prefixes(scope)
        outer = outer or tuple(scope)
        is_kept |= _is_kept(scope, rest_of_it)
        parts = _without_wrapping(rest_of_it, ancestry)
    own = [part for part in parts if not _REPLICA_RE.match(part)]
    ancestry += _prefixes(parts)
    op_type = rest.partition("#")[0]
    inner = "/".join(own)
    return OpPath(path, tuple(parts), op_type, inner, tuple(ancestry), outer, is_kept)


def _without_wrapping(parts: list[str], ancestry: list[str]) -> list[str]:
    while len(parts) > 1 and (_CALL_RE.match(parts[0]) or parts[0] in _REWRITERS):
        if parts[0] not in _REWRITERS:
            ancestry.append(parts[0])
        parts = parts[1:]
    return parts


def _branch(parts: list[str]) -> int:
    """Where the first branch or loop begins: ``cond/then/_0/…`` at 1. 0: there is none."""
    for index in range(1, len(parts) - 2):
        if parts[index] in _BRANCHES and _EDGE_RE.match(parts[index + 1]):
            return index
    return 0


def _is_kept(scope: list[str], inside: list[str]) -> bool:
    """Whether a loop keeps this for its gradient: its name is that of the loop's own gradient.

    As in ``while/body/_1/while/gradients/while_grad/…`` and
    ``lstm/while/body/_1/lstm/while/gradient_tape/lstm/while/…``. A training step in a loop is
    another thing, ``while/body/_1/while/gradient_tape/model/…``.
    """
    loop = [_NUMBER_RE.sub("", part) for part in scope]
    names = [_NUMBER_RE.sub("", part) for part in inside]
    length = len(loop)
    if names[:length] != loop or names[length : length + 1] not in (["gradients"], [GRADIENT_TAPE]):
        return False
    gradient_of = names[length + 1 : 2 * length + 1]
    return gradient_of in (loop, [*loop[:-1], f"{loop[-1]}_grad"])


def _prefixes(parts: list[str]) -> list[str]:
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
