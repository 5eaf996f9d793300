"""hpcprof: why is multi-GPU training slow, on which rank and node, and what would fixing it buy.

Importing this package loads none of pandas, numpy, TensorFlow, Horovod or nvtx: the same package
is imported inside the training, where it must cost nothing and need nothing.
"""

__version__ = "0.1.0"
