"""Writes a run folder with own spans only, as launch and annotate leave it. No profiler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcprof.artifacts import manifest, run_record
from hpcprof.artifacts.atomic import read_json, write_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers.spans_reader import read_span_file
from tests.unit.span_writer import OPENED_MONOTONIC_NS, OPENED_REALTIME_NS, SpanFile
from tests.unit.synthetic_run import HEALTHY_MS, MS, TRANSFER_MS

START_NS = OPENED_MONOTONIC_NS + 1_000_000_000


def write_run(
    folder: Path,
    ranks: int = 4,
    steps: int = 40,
    extra_ms: Mapping[tuple[int, str], float] | None = None,
    changes: Mapping[int, Mapping[str, Any]] | None = None,
    extra_in_step_ms: Callable[[int, str, int], float] | None = None,
) -> ArtifactPaths:
    """A run of equal steps; ``extra_ms`` (rank, phase) slows a rank; ``changes`` edit manifests.

    ``extra_in_step_ms`` of (rank, phase, step) comes on top. Two ranks are on one node. A rank's
    work varies by a few µs from step to step, or its noise would be 0.
    """
    paths = ArtifactPaths(folder)
    for rank in range(ranks):
        paths.rank_folder(rank).mkdir(parents=True)
        write_json(
            paths.manifest(rank), {**_manifest(rank, ranks), **(changes or {}).get(rank, {})}
        )
    always = extra_ms or {}

    def extra(rank: int, phase: str, step: int) -> float:
        at_times = extra_in_step_ms(rank, phase, step) if extra_in_step_ms else 0.0
        return always.get((rank, phase), 0.0) + at_times

    _write_spans(paths, ranks, steps, extra)
    record = run_record.new_run_record(name="small", strategy="horovod", world_size=ranks)
    paths.run_json.write_text(json.dumps(record))
    return paths


def edit_manifest(paths: ArtifactPaths, rank: int, **fields: Any) -> None:
    """Set fields of a rank's manifest."""
    write_json(paths.manifest(rank), {**read_json(paths.manifest(rank), ""), **fields})


def step_times(paths: ArtifactPaths, rank: int) -> dict[int, tuple[int, int]]:
    """Step → start and end of its span, CLOCK_MONOTONIC of the node."""
    spans = read_span_file(paths.spans(rank), rank).spans
    steps = spans[spans["kind"] == "step"]
    rows = steps[["step", "start_ns", "end_ns"]].astype("int64").values.tolist()
    return {step: (start, end) for step, start, end in rows}


def _manifest(rank: int, ranks: int) -> dict[str, Any]:
    identity = {
        **{"rank": rank, "local_rank": rank % 2, "world_size": ranks},
        **{"node": f"node{rank // 2}", "job_id": "", "slurm_step": ""},
    }
    record = manifest.new_manifest(identity, ["python", "train.py"])
    moment = {"realtime_ns": OPENED_REALTIME_NS, "monotonic_ns": OPENED_MONOTONIC_NS}
    return {**record, "pid": 4711, "started": moment, "ended": moment, "exit_code": 0}


def _write_spans(
    paths: ArtifactPaths, ranks: int, steps: int, extra_ms: Callable[[int, str, int], float]
) -> None:
    files = [SpanFile(rank) for rank in range(ranks)]
    begin = [START_NS] * ranks
    for step in range(steps):
        ready = []
        for rank, file in enumerate(files):
            now = begin[rank]
            for phase in ("input", "forward", "backward"):
                wobble = (step * 7 + rank * 3) % 5 * 1000
                end = now + int((HEALTHY_MS[phase] + extra_ms(rank, phase, step)) * MS) + wobble
                file.phase(now, end, phase, step)
                now = end
            ready.append(now)
        done = max(ready) + int(TRANSFER_MS * MS)
        for rank, file in enumerate(files):
            file.phase(ready[rank], done, "allreduce", step, nbytes=4096)
            file.step(begin[rank], done, step)
            begin[rank] = done
    for rank, file in enumerate(files):
        paths.spans(rank).write_bytes(file.content)
