"""Our NVTX ranges and marks, in domain ``hpcprof``, when a profiler listens and nvtx is there."""

from __future__ import annotations

from typing import Any, Callable

from hpcprof.artifacts.span_format import NVTX_DOMAIN

# step names never repeat; keeping a range object for each would grow for ever
_KEPT_RANGES = 256


class NvtxDomain:
    """Push, pop and mark in our domain. Ranges of one thread nest, as NVTX wants it.

    Uses ``nvtx.annotate`` objects, entered and left by hand: every version of the package has
    them, and a kept one costs a tenth of ``nvtx.push_range``, which makes its attributes anew.
    """

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx
        self._ranges: dict[str, Any] = {}
        self._leave = nvtx.annotate(message=NVTX_DOMAIN, domain=NVTX_DOMAIN).__exit__

    def push(self, name: str) -> None:
        """Open a range."""
        found = self._ranges.get(name)
        if found is None:
            text = name.encode("utf-8", "backslashreplace").decode()
            found = self._nvtx.annotate(message=text, domain=NVTX_DOMAIN)
            if len(self._ranges) < _KEPT_RANGES:
                self._ranges[name] = found
        found.__enter__()

    def pop(self) -> None:
        """Close the innermost range of this thread; which object is asked does not matter."""
        self._leave(None, None, None)

    def mark(self, text: str) -> None:
        """Place an instant."""
        self._nvtx.mark(message=text, domain=NVTX_DOMAIN)


def open_domain(note: Callable[[str], None]) -> NvtxDomain | None:
    """The domain, or None with a note when the training's Python has no usable nvtx package."""
    try:
        import nvtx

        domain = NvtxDomain(nvtx)
        domain.push(NVTX_DOMAIN)
        domain.pop()
    except Exception as error:  # a broken third-party package must never reach the training
        note(f"our NVTX ranges are missing: package nvtx cannot be used ({error})")
        return None
    return domain


def installed_version() -> str:
    """Version of the training's package nvtx, "unknown" when it does not tell. Raises nothing."""
    # imported late: it takes as long as all of annotate
    from importlib import metadata

    try:
        return metadata.version("nvtx")
    except Exception:  # vendored, or installed by hand
        return "unknown"
