"""A three-layer convolutional classifier in plain TensorFlow operations.

Not Keras: the same lines then run under Keras 2 and Keras 3 environments alike.
"""

from __future__ import annotations

from typing import Any

from hpcprof.workloads.images import CLASSES

LEARNING_RATE = 0.01


class Cnn:
    """Three convolutions with pooling and one dense layer; SGD."""

    def __init__(self, side: int, width: int, *, mirrored: bool) -> None:
        """Make the variables, equal on every rank. ``mirrored``: inside a strategy's scope."""
        import tensorflow as tf

        self._tf = tf
        kind = tf.VariableAggregation
        # under a strategy each update has already been reduced: the first replica's is the value
        aggregation = kind.ONLY_FIRST_REPLICA if mirrored else kind.NONE
        channels = [3, width, 2 * width, 4 * width]
        shapes: list[tuple[int, ...]] = [(3, 3, channels[i], channels[i + 1]) for i in range(3)]
        shapes.append(((side // 8) ** 2 * channels[3], CLASSES))
        self.variables = [
            tf.Variable(
                tf.random.stateless_normal(shape, seed=(7, index), stddev=0.05),
                aggregation=aggregation,
                name=f"layer_{index}",
            )
            for index, shape in enumerate(shapes)
        ]

    @property
    def gradient_bytes(self) -> int:
        """Payload of one full gradient exchange, in bytes."""
        return int(sum(4 * variable.shape.num_elements() for variable in self.variables))

    def loss(self, images: Any, labels: Any) -> Any:
        """Mean cross entropy of a batch."""
        tf = self._tf
        signal = images
        for kernel in self.variables[:3]:
            signal = tf.nn.relu(tf.nn.conv2d(signal, kernel, 1, "SAME"))
            signal = tf.nn.max_pool2d(signal, 2, 2, "SAME")
        logits = tf.matmul(tf.reshape(signal, (signal.shape[0], -1)), self.variables[3])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_mean(losses)

    def update(self, gradients: list[Any]) -> list[Any]:
        """One SGD step; returns the update operations' values."""
        pairs = zip(self.variables, gradients)
        return [variable.assign_sub(LEARNING_RATE * gradient) for variable, gradient in pairs]
