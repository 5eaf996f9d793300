"""``manifest.json`` of a rank: what launch knows about it, and the states a rank can have.

Written at the start of the rank and completed at its end; a manifest without ``ended`` belongs to
a rank that was killed together with its launcher.
"""

from __future__ import annotations

from typing import Any

SCHEMA = 1

# states of a rank's recording, final after collect has looked at the content
OK = "OK"  # everything that was asked for arrived
EMPTY = "EMPTY"  # the profiler's report is there but holds no event
PARTIAL = "PARTIAL"  # some was lost, some can be used
LOST = "LOST"  # nothing can be used
NOT_PROFILED = "NOT_PROFILED"  # no profiler was asked for or could be started; own spans only
STATES = (OK, EMPTY, PARTIAL, LOST, NOT_PROFILED)


def new_manifest(identity: dict[str, Any], argv: list[str]) -> dict[str, Any]:
    """A manifest as it stands when the rank starts.

    ``identity`` is RankEnv._asdict(); times are filled by the caller. ``state`` is None until
    the end; ``exit_code`` is None while the training runs.
    """
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "argv": argv,
        "pid": None,
        "started": None,  # {"realtime_ns": ..., "monotonic_ns": ...}
        "ended": None,
        "exit_code": None,
        "state": None,
        "state_reason": "",
        "cuda_visible_devices": None,
        "profiler": {"name": "none"},
        "recorder": {"name": "none"},  # or "nvtx": our own wrote nvtx.bin; else with a "reason"
        "profiler_busy": [],  # [start_ns, end_ns, why], CLOCK_MONOTONIC: nsys starts, stops, writes
        "gpus": None,  # [{"visible": 0, "uuid": "GPU-…", "name": …, "pci_bus": …}]; None: not read
        "horovod_size": None,  # hvd.size() after the first step
        "nvtx_version": None,  # of the training's package nvtx
        "hangs": [],  # {"step": …, "seconds": …, "at": {"realtime_ns", "monotonic_ns"}}
        "warnings": [],
        "hpcprof_version": None,
    }
    manifest.update(identity)
    return manifest
