"""Real Slurm: agents whose MPI fails take their whole job step down, and are started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.artifacts.paths import ArtifactPaths
from tests.cluster import training
from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

PROGRAM = """
import time
from hpcprof import annotate
for _ in range(250):
    with annotate.step():
        time.sleep(0.1)
"""


def test_agents_go_on_over_udp_when_mpi_ends_their_job_step(cluster: Cluster, horovod_python: Path):
    folder = cluster.shared / "agent-restart"
    folder.mkdir(exist_ok=True)
    program = folder / "train.py"
    program.write_text(PROGRAM)
    job = training.submit(
        cluster,
        horovod_python,
        folder,
        nsys=None,
        nodes=2,
        spec={
            "command": [str(horovod_python), str(program)],
            # Open MPI ends a process that has no such component, and with it the step
            "env": {"OMPI_MCA_pml": "missing"},
            "gpus_per_node": 0,
            "ranks_per_node": 1,
            "profile": {"profiler": "none"},
        },
    )
    assert job.wait() == "COMPLETED", job.output()
    paths = ArtifactPaths(job.run_dir)
    assert "the agents are started again, over UDP and TCP" in paths.agent_log.read_text()
    first = json.loads(paths.node_clock("node1").read_text().splitlines()[0])
    assert (first["reference"], first["transport"]) == ("node0", "udp")
    assert job.record()["clocks"]["node1"]["status"] == "tight"
