"""One training step under MultiWorkerMirroredStrategy, with stamps inside the graph.

Here a step has to be one ``tf.function``: a collective in a function of its own fails with
"destinations can not be empty". A Python range inside it would be executed once, at trace time;
so the graph itself reads the clock between its parts and returns the stamps.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from hpcprof import annotate
from hpcprof.errors import EnvironmentLacksError
from hpcprof.workloads.cnn_model import Cnn

if TYPE_CHECKING:
    from hpcprof.workloads.image_cnn import ImageCnnOptions

_PHASES = ("forward", "backward", "allreduce", "optimizer")
_FIRST_PORT = 20000
_PORT_BLOCKS = 1000  # ten ports for each job id modulo this


class MultiWorkerLoop:
    """Holds strategy, model and compiled step; ``step`` runs one optimizer update."""

    def __init__(self, options: ImageCnnOptions) -> None:
        """Start the strategy from TF_CONFIG. Raises EnvironmentLacksError without one."""
        import tensorflow as tf

        task = _task_from_environment()
        self.rank = int(task["task"]["index"])
        self.world_size = len(task["cluster"]["worker"])
        self._tf = tf
        communication = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=communication
        )
        with self._strategy.scope():
            self._model = Cnn(options.image_size, options.width, mirrored=True)
        self._compiled = tf.function(self._distributed_step)

    def step(self, images: Any, labels: Any) -> Any:
        """One optimizer update of this worker's batch; returns the loss, records the phases."""
        loss, stamps = self._compiled(images, labels)
        times = [int(stamp) for stamp in stamps.numpy()]
        for name, start, end in zip(_PHASES, times, times[1:]):
            nbytes = self._model.gradient_bytes if name == "allreduce" else 0
            annotate.record_phase(name, start, end, nbytes)
        return loss

    def _distributed_step(self, images: Any, labels: Any) -> Any:
        loss, stamps = self._strategy.run(self._replica_step, args=(images, labels))
        return (
            self._strategy.experimental_local_results(loss)[0],
            self._strategy.experimental_local_results(stamps)[0],
        )

    def _replica_step(self, images: Any, labels: Any) -> Any:
        tf = self._tf
        variables = self._model.variables
        started = self._stamp_after([])
        with tf.control_dependencies([started]), tf.GradientTape() as tape:
            loss = self._model.loss(tf.identity(images), labels)
        forward_done = self._stamp_after([loss])
        with tf.control_dependencies([forward_done]):
            seed = tf.ones_like(loss)
        gradients = tape.gradient(loss, variables, output_gradients=seed)
        backward_done = self._stamp_after(gradients)
        with tf.control_dependencies([backward_done]):
            gradients = [tf.identity(gradient) for gradient in gradients]
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        reduced = self._stamp_after(gradients)
        with tf.control_dependencies([reduced]):
            gradients = [tf.identity(gradient) for gradient in gradients]
        updated = self._stamp_after(self._model.update(gradients))
        return loss, tf.stack([started, forward_done, backward_done, reduced, updated])

    def _stamp_after(self, tensors: list[Any]) -> Any:
        """The monotonic clock, read when ``tensors`` have been computed."""
        tf = self._tf
        with tf.control_dependencies(tensors):
            stamp = tf.numpy_function(_monotonic_ns, [], tf.int64)
        stamp.set_shape(())
        return stamp


def _monotonic_ns() -> Any:
    import numpy as np

    return np.int64(annotate.now_ns())


def _task_from_environment() -> dict[str, Any]:
    """TF_CONFIG as a mapping; under Slurm made from HPCPROF_HOSTS when it is not set."""
    if "TF_CONFIG" not in os.environ:
        hosts = os.environ.get("HPCPROF_HOSTS", "").split()
        if not hosts or "SLURM_PROCID" not in os.environ:
            raise EnvironmentLacksError(
                "TF_CONFIG is not set. Start the workload with hpcprof launch --ranks N "
                "--strategy multiworker, or from a job script made by hpcprof generate."
            )
        os.environ["TF_CONFIG"] = json.dumps(_slurm_task(hosts))
    value: dict[str, Any] = json.loads(os.environ["TF_CONFIG"])
    return value


def _slurm_task(hosts: list[str]) -> dict[str, Any]:
    rank = int(os.environ["SLURM_PROCID"])
    world_size = int(os.environ["SLURM_NTASKS"])
    per_node = world_size // len(hosts)
    first = _FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % _PORT_BLOCKS * 10
    workers = [f"{hosts[i // per_node]}:{first + i % per_node}" for i in range(world_size)]
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
