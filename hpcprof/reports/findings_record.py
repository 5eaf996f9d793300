"""``findings.json``: the verdict of a run as a JSON object, schema 1 (findings.schema.json)."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from hpcprof.analyses.run_results import RunResults
from hpcprof.findings.model import Finding
from hpcprof.trace.model import RankInfo, Training

SCHEMA = 1


def findings_record(
    results: RunResults, findings: list[Finding], healthy: list[str]
) -> dict[str, Any]:
    """Everything a report needs, as plain JSON values; nan becomes null. Times are in ns."""
    return {
        "schema": SCHEMA,
        "run": _run(results),
        "quality": {
            "ranks": [_rank(info) for info in results.ranks],
            "missing": list(results.missing),
            "left_out": list(results.left_out),
            "collectives": results.collective_form,
            "transfer_collectives": results.transfer_form or results.collective_form,
            "busy_steps": _plain(asdict(results.busy)),
            "profiler_overhead": _plain(asdict(results.overhead)),
            "named_steps": _plain(asdict(results.named)),
            "naming_overhead": {
                name: _plain(asdict(cost)) for name, cost in results.naming_overhead.items()
            },
            "agent_notes": [_plain(asdict(note)) for note in results.agents.notes],
        },
        "findings": [_finding(finding) for finding in findings],
        "healthy": healthy,
        "clocks": {node: _plain(clock.summary()) for node, clock in results.clocks.items()},
        "phases": _phases(results),
        "operations": _plain(asdict(results.op_phases)),
        "memory": [
            _plain({"rank": rank, **asdict(split), "unclassified_frac": split.unclassified_frac})
            for rank, splits in sorted(results.memory.items())
            for split in splits
        ],
        "horovod": None if results.horovod is None else _plain(asdict(results.horovod)),
        "interconnect": _plain(asdict(results.interconnect)),
        "reads": _plain(asdict(results.reads)),
    }


def _run(results: RunResults) -> dict[str, Any]:
    job, times = results.job, results.phase_times
    return _plain(
        {
            "name": job.name,
            "job_id": job.job_id,
            "strategy": job.strategy,
            "world_size": job.world_size,
            "nodes": list(job.nodes),
            "steps_used": times.steps,
            "warm_up_steps": times.warm_up,
            "steps_each": times.stride,
            "step_ns": times.step_ns,
            "payload_bytes": results.payload_bytes,
            "end": None if results.job_end is None else asdict(results.job_end),
        }
    )


def _rank(info: RankInfo) -> dict[str, Any]:
    return _plain(
        {
            "rank": info.rank,
            "node": info.node,
            "local_rank": info.local_rank,
            "exit_code": info.exit_code,
            "ended": info.ended is not None,
            "state": info.state,
            "reason": info.reason,
            "sources": {name: asdict(source) for name, source in info.sources.items()},
            "warnings": list(info.warnings),
            "gpus": None if info.gpus is None else [gpu._asdict() for gpu in info.gpus],
            "horovod_size": info.horovod_size,
            "hangs": [{"step": hang.step, "seconds": hang.seconds} for hang in info.hangs],
            "training": None if info.training is None else _training(info.training),
        }
    )


def _training(training: Training) -> dict[str, Any]:
    """What the hooks saw, as far as a report speaks of it."""
    names = (
        *("steps_by", "versions", "hooks", "strategy", "replicas", "optimizer", "batch_size"),
        *("input_not_separable", "phases_not_separable", "op_steps", "tf_steps", "warnings"),
    )
    peaks = {
        device: max(peak for _step, _given_away, peak in samples)
        for device, samples in training.memory.items()
        if samples
    }
    return {**{name: getattr(training, name) for name in names}, "memory_peak_bytes": peaks}


def _finding(finding: Finding) -> dict[str, Any]:
    record = asdict(finding)
    record["next"] = dict(finding.next) or None
    return _plain(record)


def _phases(results: RunResults) -> dict[str, Any]:
    times = results.phase_times
    return _plain(
        {
            "ranks": list(times.ranks),
            "lateness_ns": [results.stragglers.lateness_ns.get(rank) for rank in times.ranks],
            "median_ns": {part: list(values) for part, values in times.median_ns.items()},
        }
    )


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """The record with values that JSON has."""
    return {str(key): _plain_value(value) for key, value in record.items()}


def _plain_value(value: Any) -> Any:
    """Tuples as lists, nan as None: JSON has neither."""
    if isinstance(value, dict):
        return _plain(value)
    if isinstance(value, (list, tuple)):
        return [_plain_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
