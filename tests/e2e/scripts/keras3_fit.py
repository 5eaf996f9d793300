"""Keras 3: ``fit`` on one device, without Horovod."""

from __future__ import annotations

import keras
import small_cnn

small_cnn.make_deterministic()
model = small_cnn.model()
model.compile(
    optimizer=small_cnn.optimizer(learning_rate=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    small_cnn.images(),
    steps_per_epoch=small_cnn.STEPS,
    epochs=1,
    callbacks=[keras.callbacks.TerminateOnNaN()],
    verbose=2,
)
small_cnn.report(0, history.history["loss"][-1], model)
