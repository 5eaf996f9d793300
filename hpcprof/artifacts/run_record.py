"""``run.json`` of a run: what was asked for. Written by the job script or by local launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcprof.artifacts.atomic import read_json

SCHEMA = 1

# what launch obeys; every key may be missing in run.json
LAUNCH_DEFAULTS: dict[str, Any] = {
    "profiler": "auto",  # auto: nsys where it is found; nsys; none
    "nsys_path": None,  # None: first on PATH
    "nsys_trace": ["cuda", "nvtx", "mpi"],  # those the installed nsys knows are used
    "nsys_extra": [],
    "profile_ranks": "all",
    "profile_steps": None,  # "20-59": only these steps are recorded; None: the whole run
    "hooks": True,  # instrument TensorFlow, Keras and Horovod in scripts that know nothing of us
    "recorder": "auto",  # our own NVTX recorder: auto: on ranks without nsys; none
    "op_steps": "10-29",  # steps in which TensorFlow names each of its operations; none
    "tf_ranks": None,  # ranks that tf.profiler records, like profile_ranks; None: none
    "tf_steps": "30-39",
    "hang_after_s": 600,  # no step for so long: write the stacks down; 0: never
    "agent": "auto",  # the node agent of jobs: auto, or none
    "agent_interval_s": 30,  # between its measurements of clocks and links
    "data_dir": None,  # the data set: the agent measures how fast a node reads from there
    "scratch": None,  # node-local folder; None: TMPDIR, else /tmp
}


def new_run_record(*, name: str, strategy: str, world_size: int | None) -> dict[str, Any]:
    """A run record with the defaults of launch; the caller adds ``spec`` and ``site``."""
    return {
        "schema": SCHEMA,
        "name": name,
        "strategy": strategy,
        "world_size": world_size,
        "spec": {},
        "site": {},
        "launch": dict(LAUNCH_DEFAULTS),
    }


def launch_settings(run_json: Path) -> dict[str, Any]:
    """The ``launch`` section with defaults filled in. Raises InputError when unreadable."""
    given = read_json(run_json, "the run's record").get("launch", {})
    return {**LAUNCH_DEFAULTS, **given}
