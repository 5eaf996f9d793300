"""JPEG files on disk and the tf.data pipeline that reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

CLASSES = 10


def ensure_images(folder: Path, count: int, side: int, seed: int) -> list[str]:
    """Make ``count`` JPEG files of ``side`` × ``side`` pixels unless they are there; their paths.

    Noise hardly compresses, so a file of 96 × 96 pixels takes about 20 kB. A file is renamed into
    place, so that a second run beside the first one never reads half an image.
    """
    import numpy as np
    import tensorflow as tf

    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    paths = []
    for index in range(count):
        path = folder / f"{index:05d}-{index % CLASSES}.jpg"
        paths.append(os.fspath(path))
        if path.exists():
            continue
        pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(tf.io.encode_jpeg(pixels, quality=95).numpy())
        os.replace(temporary, path)
    return paths


def dataset(paths: list[str], side: int, batch: int, threads: int, prefetch: int) -> Any:
    """Endless batches of (images float32 [batch, side, side, 3] in 0…1, labels int64 [batch]).

    ``prefetch`` batches are read ahead while the model trains; with 0 each step waits for its own.
    """
    import tensorflow as tf

    def load(path: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.ensure_shape(image, (side, side, 3))
        label = tf.strings.to_number(tf.strings.substr(path, -5, 1), tf.int64)
        return tf.cast(image, tf.float32) / 255.0, label

    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    # else TensorFlow fuses and extends the pipeline, and reads a batch ahead that nobody asked for
    options.experimental_optimization.apply_default_optimizations = False
    files = tf.data.Dataset.from_tensor_slices(paths).repeat()
    batches = files.map(load, num_parallel_calls=threads).batch(batch, drop_remainder=True)
    if prefetch:
        batches = batches.prefetch(prefetch)
    return batches.with_options(options)
