"""MirroredStrategy on two devices (logical CPUs): a loop over a distributed data set.

Batches are read ahead, so a slow input shows only as far as it is slower than the steps. What this
script sees of that itself is printed.
"""

from __future__ import annotations

import json
import time

import small_cnn
import tensorflow as tf

REPLICAS = 2

small_cnn.make_deterministic()
cpu = tf.config.list_physical_devices("CPU")[0]
logical = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
tf.config.set_logical_device_configuration(cpu, logical)
strategy = tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(REPLICAS)])

with strategy.scope():
    model = small_cnn.model()
    optimizer = small_cnn.optimizer(learning_rate=1e-3)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def replica_step(images, labels):
    """One replica's part of an update; returns its part of the loss."""
    with tf.GradientTape() as tape:
        losses = loss_of(labels, model(images, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=small_cnn.BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def train_step(batch):
    """One update on all replicas; returns the loss."""
    losses = strategy.run(replica_step, args=batch)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


# read to its end: TensorFlow hangs at exit where Python code of the data set still reads ahead
data = small_cnn.images().take(small_cnn.STEPS)
batches = iter(strategy.experimental_distribute_dataset(data))
waits = []
loss = 0.0
while True:
    begin = time.monotonic()
    try:
        batch = next(batches)
    except StopIteration:
        break
    waits.append((time.monotonic() - begin) * 1000)
    loss = train_step(batch)
print("rank 0 waits ms", json.dumps(waits))
small_cnn.report(0, float(loss), model)
