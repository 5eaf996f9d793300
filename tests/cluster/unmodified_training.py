"""A training as people write it: Horovod, a custom loop over tf.data, nothing of hpcprof.

    python unmodified_training.py DATA_FOLDER STEPS

Reads JPEG files of its own rank; one thread per rank, each rank bound to one core.
"""

import os
import pathlib
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

SIDE, BATCH, FILES, WIDTH, CLASSES = 128, 8, 32, 24, 10

hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
# ranks of one node share a core: the kernel would share the cores out unevenly between nodes
os.sched_setaffinity(0, {hvd.rank() * (os.cpu_count() or 1) // hvd.size()})

folder = pathlib.Path(sys.argv[1]) / f"rank{hvd.rank()}"
steps = int(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
generator = np.random.default_rng(hvd.rank())
for number in range(FILES):
    pixels = generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    tf.io.write_file(str(folder / f"{number}.jpg"), tf.io.encode_jpeg(pixels, quality=95))


def load(path, label):
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.cast(tf.ensure_shape(image, (SIDE, SIDE, 3)), tf.float32) / 255.0, label


paths = [str(folder / f"{number}.jpg") for number in range(FILES)]
labels = [number % CLASSES for number in range(FILES)]
dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).repeat()
dataset = dataset.map(load).batch(BATCH, drop_remainder=True).prefetch(1).take(steps)

layers = tf.keras.layers
net = [
    each
    for channels in (WIDTH, 2 * WIDTH, 4 * WIDTH)
    for each in (layers.Conv2D(channels, 3, padding="same", activation="relu"), layers.MaxPool2D())
]
model = tf.keras.Sequential([tf.keras.Input((SIDE, SIDE, 3)), *net])
model.add(layers.Flatten())
model.add(layers.Dense(CLASSES))
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size())


@tf.function
def train_step(images, targets):
    with tf.GradientTape() as tape:
        loss = loss_of(targets, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
    return loss


for step, (images, targets) in enumerate(dataset):
    loss = train_step(images, targets)
    if step == 0:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
print(f"loss {float(loss):.4f}")
