"""Keras 2 and Horovod: ``hvd.DistributedOptimizer`` and ``fit``, as in Horovod's own examples."""

from __future__ import annotations

import horovod.tensorflow.keras as hvd
import small_cnn
import tensorflow as tf

hvd.init()
small_cnn.make_deterministic()
rank = hvd.rank()

model = small_cnn.model(rank)
optimizer = hvd.DistributedOptimizer(small_cnn.optimizer(rank, learning_rate=1e-3 * hvd.size()))
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    tf.keras.callbacks.TerminateOnNaN(),
]
history = model.fit(
    small_cnn.images(rank),
    steps_per_epoch=small_cnn.STEPS,
    epochs=1,
    callbacks=callbacks,
    verbose=2 if rank == 0 else 0,
)
small_cnn.report(rank, history.history["loss"][-1], model)
