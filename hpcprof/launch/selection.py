"""Which ranks are profiled: all, none, or a list such as ``3,0-7,local0,node:n1``."""

from __future__ import annotations

from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.errors import UsageError


def is_selected(selector: str, identity: RankEnv, setting: str = "profile_ranks") -> bool:
    """True when the rank is among those in ``selector``, the value of ``setting``.

    Raises UsageError when it is malformed.
    """
    parts = str(selector).split(",")
    # every part is looked at, so that a typing error does not show on some ranks only
    return any([_matches(part.strip(), identity, setting) for part in parts])  # noqa: C419


def _matches(part: str, identity: RankEnv, setting: str) -> bool:
    if part in ("all", "none"):
        return part == "all"
    if part.startswith("node:"):
        return identity.node == part[len("node:") :]
    if part.startswith("local") and part[len("local") :].isdecimal():
        return identity.local_rank == int(part[len("local") :])
    first, dash, last = part.partition("-")
    if first.isdecimal() and (last.isdecimal() if dash else not last):
        return int(first) <= identity.rank <= int(last or first)
    raise UsageError(
        f"{setting}: {part!r} is none of all, none, 3, 0-7, local0, node:NAME; "
        "give one or several with commas"
    )
