"""``ArtifactPaths``: the only place that knows the file names of a run.

Used by whoever writes a file and by whoever reads it. Creates nothing except in ``make_*``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

RUN_FOLDER_MODE = 0o700
_RANK_FOLDER_RE = re.compile(r"\A[0-9]{5,}\Z")


class ArtifactPaths:
    """Paths of one run folder. ``rank`` is the global index of a training process."""

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self.root = Path(run_dir)

    @property
    def run_json(self) -> Path:
        """Spec, site, versions and launch settings of the run."""
        return self.root / "run.json"

    @property
    def job_script(self) -> Path:
        """The batch script as submitted."""
        return self.root / "job.sbatch"

    @property
    def ranks(self) -> Path:
        """Folder of the per-rank folders."""
        return self.root / "ranks"

    @property
    def store(self) -> Path:
        """Parquet store made by collect."""
        return self.root / "store"

    @property
    def figures(self) -> Path:
        """What the figures of the page show, made by collect."""
        return self.store / "figures.json"

    @property
    def findings(self) -> Path:
        """Verdict as JSON, made by collect."""
        return self.root / "findings.json"

    @property
    def report_html(self) -> Path:
        """The page, made by collect."""
        return self.root / "report.html"

    @property
    def nodes(self) -> Path:
        """Folder of what the node agent recorded."""
        return self.root / "nodes"

    def node_folder(self, node: str) -> Path:
        """Folder of one node, named by its short host name."""
        return self.nodes / node

    def node_clock(self, node: str) -> Path:
        """The agent's clock readings; see artifacts.node_records."""
        return self.node_folder(node) / "clock.jsonl"

    def node_links(self, node: str) -> Path:
        """The agent's measurements of the network."""
        return self.node_folder(node) / "links.jsonl"

    def node_samples(self, node: str) -> Path:
        """The agent's counters of the node and its ranks."""
        return self.node_folder(node) / "samples.jsonl"

    def node_facts(self, node: str) -> Path:
        """What does not change during the job."""
        return self.node_folder(node) / "facts.json"

    def node_address(self, node: str) -> Path:
        """Where the agent of the node listens, for the other agents of the job."""
        return self.node_folder(node) / "address.json"

    @property
    def agent_log(self) -> Path:
        """What the agents and their srun printed."""
        return self.nodes / "agent.log"

    @property
    def horovod_timeline(self) -> Path:
        """Horovod's own timeline, written by its coordinator (rank 0)."""
        return self.root / "horovod" / "timeline.json"

    def node_names(self) -> list[str]:
        """Nodes whose agent left a folder, sorted; no folder gives []."""
        try:
            return sorted(path.name for path in self.nodes.iterdir() if path.is_dir())
        except FileNotFoundError:
            return []

    def rank_folder(self, rank: int) -> Path:
        """Folder of one rank, five digits so that names sort as numbers do."""
        return self.ranks / f"{rank:05d}"

    def manifest(self, rank: int) -> Path:
        """What launch knows of the rank."""
        return self.rank_folder(rank) / "manifest.json"

    def manifest_reserve(self, rank: int) -> Path:
        """Space kept free for the final manifest, given back just before it is written."""
        return self.rank_folder(rank) / "manifest.reserve"

    def spans(self, rank: int) -> Path:
        """Our own span records."""
        return self.rank_folder(rank) / "spans.bin"

    def nvtx_record(self, rank: int) -> Path:
        """NVTX ranges that our own recorder saw (artifacts/nvtx_format.py)."""
        return self.rank_folder(rank) / "nvtx.bin"

    def training(self, rank: int) -> Path:
        """What the hooks saw of the training (artifacts/training_record.py)."""
        return self.rank_folder(rank) / "training.json"

    def tf_profile(self, rank: int) -> Path:
        """Log folder of tf.profiler, one per rank: names of its files hold the host only."""
        return self.rank_folder(rank) / "tfprof"

    def stacks(self, rank: int) -> Path:
        """What every thread of the training was doing when no step came for too long."""
        return self.rank_folder(rank) / "stacks.txt"

    def nsys_stem(self, rank: int) -> Path:
        """What ``nsys profile -o`` is given; nsys adds its own ending."""
        return self.rank_folder(rank) / "rank"

    def nsys_report(self, rank: int) -> Path:
        """The imported report."""
        return self.rank_folder(rank) / "rank.nsys-rep"

    def nsys_stream(self, rank: int) -> Path:
        """The raw recording, when the importer has not run yet."""
        return self.rank_folder(rank) / "rank.qdstrm"

    def nsys_sqlite(self, rank: int) -> Path:
        """An export left by somebody else; our own exports go to the store's work folder."""
        return self.rank_folder(rank) / "rank.sqlite"

    def nsys_log(self, rank: int) -> Path:
        """What the nsys command line printed."""
        return self.rank_folder(rank) / "nsys.log"

    def rank_ids(self) -> list[int]:
        """Ranks that left a folder, ascending. Foreign names are ignored; no folder gives []."""
        try:
            names = os.listdir(self.ranks)
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if _RANK_FOLDER_RE.match(name))


def run_folder_name(environ: dict[str, str], job_name: str) -> str:
    """Folder name of a Slurm run: ``<job name>-<jobid>[-r<restart count>][-a<array task>]``.

    ``environ`` must hold SLURM_JOB_ID. Job scripts make the name in bash, where it can be read; a
    test holds that to this.
    """
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ["SLURM_JOB_ID"]
    name = f"{job_name}-{job}"
    restart = environ.get("SLURM_RESTART_COUNT", "0")
    if restart not in ("", "0"):
        name += f"-r{restart}"
    if environ.get("SLURM_ARRAY_TASK_ID"):
        name += f"-a{environ['SLURM_ARRAY_TASK_ID']}"
    return name
