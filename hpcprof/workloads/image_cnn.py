"""``image-cnn``: JPEG files → tf.data → a small convolutional net, under Horovod or MultiWorker.

The phases are honest in graph mode. Under Horovod forward, backward, allreduce and optimizer are
separate calls from Python; under MultiWorkerMirroredStrategy, where a step must be one
``tf.function``, the graph stamps its own phases.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple, TypeVar

from hpcprof import annotate
from hpcprof.errors import EnvironmentLacksError, UsageError
from hpcprof.workloads import images

T = TypeVar("T")


class ImageCnnOptions(NamedTuple):
    """Settings; sizes in pixels and images, per rank where not said otherwise."""

    strategy: str
    steps: int
    batch: int
    image_size: int
    width: int
    files: int
    data_dir: Path
    threads: int
    prefetch: int
    pin: bool
    slow_input: tuple[int, int] | None


def train(options: ImageCnnOptions) -> None:
    """Train ``options.steps`` steps. Raises HpcprofError for a wrong request or environment."""
    if min(options.steps, options.batch, options.files, options.threads) < 1:
        raise UsageError("steps, batch, files and threads must be at least 1")
    if options.prefetch < 0:
        raise UsageError("--prefetch must be 0 or more batches")
    if options.image_size < 8:
        raise UsageError("--image-size must be at least 8 pixels (three poolings halve it)")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise EnvironmentLacksError(
            f"TensorFlow cannot be imported ({error}). "
            "Start the workload with the Python of an environment that holds it."
        ) from None
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    if options.strategy == "horovod":
        from hpcprof.workloads.horovod_loop import HorovodLoop as Loop
    else:
        from hpcprof.workloads.multiworker_loop import MultiWorkerLoop as Loop  # type: ignore[assignment]
    loop = Loop(options)
    if options.pin:
        # neighbours share a core, and with it a node on the test cluster: the kernel shares cores
        # out between the nodes' cgroups, so two nodes on one core would slow each other unevenly
        os.sched_setaffinity(0, {loop.rank * (os.cpu_count() or 1) // loop.world_size})
    _run(loop, options)


def _run(loop: Any, options: ImageCnnOptions) -> None:
    folder = options.data_dir / f"{options.image_size}px" / f"rank{loop.rank:05d}"
    paths = images.ensure_images(folder, options.files, options.image_size, loop.rank)
    endless = images.dataset(
        paths, options.image_size, options.batch, options.threads, options.prefetch
    )
    # not endless.take(): its end kept the process waiting for 10 to 40 s with four ranks
    batches: Iterable[Any] = itertools.islice(endless, options.steps)
    if options.slow_input and options.slow_input[0] == loop.rank:
        batches = _delayed(batches, options.slow_input[1] / 1000)
    started = time.monotonic()
    loss = None
    for image_batch, label_batch in annotate.data(batches):
        with annotate.step():
            loss = loop.step(image_batch, label_batch)
    seconds = time.monotonic() - started
    if loop.rank == 0 and loss is not None:
        rate = options.steps * options.batch * loop.world_size / seconds
        print(f"image-cnn: {options.steps} steps, {rate:.1f} images/s, loss {float(loss):.4f}")


def _delayed(batches: Iterable[T], seconds: float) -> Iterator[T]:
    for batch in batches:
        time.sleep(seconds)
        yield batch
