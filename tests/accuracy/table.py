"""The results of the trials as docs/accuracy-real.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .outcome import RIGHT, WRONG
from .plan import CAUSE_OF

_HEAD = """# Accuracy on real jobs

Made by `make accuracy-real`, which runs trials on the test cluster
([test-cluster.md](test-cluster.md)): real Slurm, Horovod and, in one job, Nsight Systems; faults of
known truth, switched on and off between the steps of a running training. Each trial is a stretch of
about 40 steps, judged as if it were a run of its own. The nodes' CLOCK_MONOTONIC are 1000 s apart;
their wall clocks and rates differ as the table of clocks says.

What it cannot say: virtual nodes on two cores are noisier than real ones and have no GPU, and the
faults are large (a rank with half of its share of a core, a node's files at 0.6 MB/s, a node's
network at 100 Mbit/s).
"""


# what a miss was looked into and found to be; a miss without one is an open question
_EXPLANATIONS = {
    ("one-rank-per-node", "slow network", "missed"): (
        "MPI crashed in the agent of node1 as it started (SIGSEGV inside MPI_Init), and Slurm's "
        "PMIx ended the job step of all agents with it: no link was measured, which the report "
        "says, and nobody was accused. Clocks came from the collectives. Since then such agents "
        "are started again, without MPI. The trial was made before that."
    ),
}


def as_markdown(results: Sequence[dict[str, Any]]) -> str:
    """The whole document."""
    trials = [
        {**trial, "session": result["session"]} for result in results for trial in result["trials"]
    ]
    right = sum(trial["outcome"] in RIGHT for trial in trials)
    wrong = sum(trial["outcome"] == WRONG for trial in trials)
    parts = [
        _HEAD,
        f"**{right} of {len(trials)} trials right; wrong accusations: {wrong}.**\n",
        "## Truth against verdict\n",
        *_confusion(trials),
        "\n## Clocks\n",
        *_clocks(results),
        *_wide_bounds(results),
        "\n## Trials\n",
        *_trials(trials),
        *_misses(trials),
    ]
    return "\n".join(parts) + "\n"


def verdict(trial: dict[str, Any]) -> str:
    """What was said in one trial: causes accused, or nobody."""
    return " and ".join(sorted({str(f["cause"]) for f in trial["accused"]})) or "nobody"


def _confusion(trials: Sequence[dict[str, Any]]) -> Iterator[str]:
    counts = Counter((trial["fault"], verdict(trial)) for trial in trials)
    said = ["nobody", *sorted({v for _, v in counts} - {"nobody"})]
    yield f"| injected | {' | '.join(said)} | right place and cause |"
    yield "|---" * (len(said) + 2) + "|"
    for fault in CAUSE_OF:
        own = [trial for trial in trials if trial["fault"] == fault]
        cells = [str(counts[fault, v] or "") for v in said]
        right = sum(trial["outcome"] in RIGHT for trial in own)
        yield f"| {fault} | {' | '.join(cells)} | {right} of {len(own)} |"


def _clocks(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "Largest error while the trials ran, against the first node of the job.\n"
    heads = "job, node, wall clock off, drift against it, drift found, method, error, bound, inside"
    yield f"| {heads.replace(', ', ' | ')} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for result in results:
        for node, clock in result["clocks"].items():
            cells = [
                *(result["session"], node, f"{clock['true_offset_ns'] / 1e6:+.0f} ms"),
                *(f"{clock['true_ppb'] / 1e3:+.1f} ppm", f"{clock['drift_ppb'] / 1e3:+.2f} ppm"),
                *(clock["method"], f"{clock['error_ns'] / 1e3:.1f} µs"),
                *(f"{clock['bound_ns'] / 1e3:.0f} µs", "yes" if clock["is_within"] else "**no**"),
            ]
            yield f"| {' | '.join(cells)} |"


def _wide_bounds(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        if any(clock["bound_ns"] > 1e6 for clock in result["clocks"].values()):
            said = "; ".join(result["warnings"]) or "nothing"
            yield f"\nBounds of more than 1 ms in job {result['session']}. Collect said: {said}."


def _trials(trials: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| job | injected | where | step | accused | outcome |"
    yield "|---|---|---|---|---|---|"
    for trial in trials:
        accused = "; ".join(
            f"{','.join(map(str, f['ranks'])) or '–'} on {','.join(f['nodes'])}: {f['cause']}"
            for f in trial["accused"]
        )
        where = " ".join(trial["nodes"])
        if trial["ranks"]:
            where += f" rank {','.join(map(str, trial['ranks']))}"
        step = f"{trial['step_ns'] / 1e6:.0f} ms" if trial["step_ns"] else "unknown"
        cells = [trial["session"], trial["fault"], where, step, accused, trial["outcome"]]
        yield f"| {' | '.join(cells)} |"


def _misses(trials: Sequence[dict[str, Any]]) -> Iterator[str]:
    for trial in trials:
        if trial["outcome"] not in RIGHT:
            late = [f"{ns / 1e6:+.0f}" for ns in trial["lateness_ns"] if ns is not None]
            yield (
                f"\n**{trial['session']}, {trial['fault']} {' '.join(trial['nodes'])}: "
                f"{trial['outcome']}.** Median lateness of the ranks: {', '.join(late)} ms. "
                + _EXPLANATIONS.get(
                    (trial["session"], trial["fault"], trial["outcome"]), "Not explained yet."
                )
            )
