"""One training step under Horovod: each phase is a call from Python, so its range is true."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hpcprof import annotate
from hpcprof.errors import EnvironmentLacksError
from hpcprof.workloads.cnn_model import Cnn

if TYPE_CHECKING:
    from hpcprof.workloads.image_cnn import ImageCnnOptions


class HorovodLoop:
    """Holds the model and the compiled functions; ``step`` runs one optimizer update."""

    def __init__(self, options: ImageCnnOptions) -> None:
        """Start Horovod. Raises EnvironmentLacksError when it is missing or did not connect."""
        import tensorflow as tf

        try:
            import horovod.tensorflow as hvd
        except ImportError as error:
            raise EnvironmentLacksError(
                f"Horovod cannot be imported ({error}). Install hpcprof's extra 'horovod' "
                "in the training environment, or use --strategy multiworker."
            ) from None
        hvd.init()
        self.rank = int(hvd.rank())
        self.world_size = int(hvd.size())
        _check_size(self.world_size)
        self._tf = tf
        self._model = Cnn(options.image_size, options.width, mirrored=False)
        self._forward = tf.function(self._model.loss)
        self._reduce = tf.function(
            lambda gradients: [
                hvd.allreduce(gradient, op=hvd.Average, name=f"gradient_{index}")
                for index, gradient in enumerate(gradients)
            ]
        )
        self._update = tf.function(self._model.update)
        hvd.broadcast_variables(self._model.variables, root_rank=0)

    def step(self, images: Any, labels: Any) -> Any:
        """Forward, backward, allreduce and update of one batch; returns the loss.

        The tape records the compiled forward function as one operation, and its gradient is
        another compiled function: two calls whose time is theirs alone.
        """
        with annotate.phase("forward"), self._tf.GradientTape() as tape:
            loss = self._forward(images, labels)
        with annotate.phase("backward"):
            gradients = tape.gradient(loss, self._model.variables)
        with annotate.phase("allreduce", self._model.gradient_bytes):
            gradients = self._reduce(gradients)
        with annotate.phase("optimizer"):
            self._update(gradients)
        return loss


def _check_size(world_size: int) -> None:
    """Horovod built for another MPI than the launcher's starts as so many jobs of one rank."""
    expected = os.environ.get("SLURM_NTASKS", "")
    if expected.isdigit() and int(expected) != world_size:
        raise EnvironmentLacksError(
            f"Horovod sees {world_size} ranks where Slurm started {expected}: its MPI does not "
            "match srun's. Look at `srun --mpi=list` and set slurm.srun.mpi in the site file."
        )
