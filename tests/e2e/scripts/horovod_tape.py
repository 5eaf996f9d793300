"""A loop of one's own with Horovod: ``tf.function`` and ``hvd.DistributedGradientTape``.

SLOW_ALLREDUCE=N: in the slow steps N MiB of statistics are averaged as well; their times, as this
script sees them, are printed.
"""

from __future__ import annotations

import json
import time

import horovod.tensorflow as hvd
import small_cnn
import tensorflow as tf

hvd.init()
small_cnn.make_deterministic()
rank = hvd.rank()

model = small_cnn.model(rank)
optimizer = small_cnn.optimizer(rank, learning_rate=1e-3 * hvd.size())
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mebibytes = int(small_cnn.amount("allreduce"))
statistics = tf.ones([max(mebibytes, 1) * 2**18])


@tf.function
def train_step(images, labels):
    """One update; returns the loss."""
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


times = []
loss = 0.0
for step, (images, labels) in enumerate(small_cnn.images(rank).take(small_cnn.STEPS)):
    loss = train_step(images, labels)
    if step == 0:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    if mebibytes and small_cnn.is_slow(step):
        begin = time.monotonic()
        hvd.allreduce(statistics, name="statistics").numpy()
        times.append((time.monotonic() - begin) * 1000)

print(f"rank {rank} statistics ms", json.dumps(times))
small_cnn.report(rank, float(loss), model)
