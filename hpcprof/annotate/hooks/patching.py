"""Puts a function of ours around one of TensorFlow's, so that nobody notices."""

from __future__ import annotations

import functools
from typing import Any, Callable

Function = Callable[..., Any]

_PATCHED = "_hpcprof_patched"


def patch(owner: Any, name: str, around: Callable[[Function], Function]) -> None:
    """Replace ``owner.name`` by ``around(original)``; once, however often it is asked for.

    For functions that are called at every step: a plain function costs less than wrapt's proxy.
    Name, module, signature and documentation stay the original's; by its module AutoGraph knows
    that it must not rewrite ours. Raises AttributeError when there is no such function.

    What ``around`` answers takes the object that it is called for by position only: a function of
    the user's may have an argument of any name.
    """
    original = owner.__dict__[name] if name in vars(owner) else getattr(owner, name)
    if getattr(original, _PATCHED, False):
        return
    replacement = functools.wraps(original)(around(original))
    setattr(replacement, _PATCHED, True)
    setattr(owner, name, replacement)
