"""A loop of one's own with Horovod: ``tf.function`` and ``hvd.DistributedGradientTape``.

SLOW_ALLREDUCE=N: after each update the loss is averaged, and then statistics, for which the last
rank comes N milliseconds late in the slow steps. On the others that allreduce takes as long.
"""

from __future__ import annotations

import horovod.tensorflow as hvd
import small_cnn
import tensorflow as tf

hvd.init()
small_cnn.make_deterministic()
rank = hvd.rank()

model = small_cnn.model(rank)
optimizer = small_cnn.optimizer(rank, learning_rate=1e-3 * hvd.size())
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
late_ms = small_cnn.amount("allreduce")
statistics = tf.ones([2**18])


@tf.function
def train_step(images, labels):
    """One update; returns the loss."""
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


loss = 0.0
for step, (images, labels) in enumerate(small_cnn.images(rank).take(small_cnn.STEPS)):
    loss = train_step(images, labels)
    if step == 0:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    if late_ms:
        loss = hvd.allreduce(loss, name="loss")
        if rank == hvd.size() - 1:
            small_cnn.sleep_in_step(step, late_ms)
        hvd.allreduce(statistics, name="statistics")

small_cnn.report(rank, float(loss), model)
