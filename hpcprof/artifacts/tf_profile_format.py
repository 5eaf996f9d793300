"""Names of what hpcprof puts into the files of tf.profiler: annotate writes, readers read them."""

from __future__ import annotations

# an event whose statistics say what CLOCK_MONOTONIC was just before it. Two of them with one number
# bracket a moment; the first also says CLOCK_REALTIME
SYNC = "hpcprof_sync"
SYNC_NUMBER = "seq"
SYNC_MONOTONIC = "mono_ns"
SYNC_WALL = "wall_ns"

# statistics of the event around a step; Keras makes events of the same name without the second
STEP = "train"
STEP_NUMBER = "step_num"
OWN_STEP = "hpcprof_step"
