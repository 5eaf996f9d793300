"""How long does Horovod negotiate, and how long does it move bytes, as its coordinator saw it?

From Horovod's own timeline (rank 0): per allreduce the negotiation, from the first rank that is
ready to the last, and the operation after it. Medians over all of them, so that the first step does
not count. A large negotiation is waiting for ranks, a large operation is the network.

One rank's view; ready ticks of the ranks are mostly missing (the response cache answers instead),
so lateness of ranks is never computed from them. Recording it makes Horovod wait for the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from hpcprof.trace import columns as c


@dataclass(frozen=True)
class HorovodPhases:
    """``allreduces`` that ended, of which ``with_ticks`` had ready ticks. Times are medians, ns."""

    allreduces: int
    with_ticks: int
    negotiate_ns: float
    transfer_ns: float


def horovod_phases(operations: pd.DataFrame, with_ticks: int) -> HorovodPhases:
    """``operations`` as ``readers.horovod_timeline`` gives them; nan without any allreduce."""
    ended = operations[operations[c.OP] == "allreduce"].dropna(
        subset=["negotiate_start_ns", "negotiate_end_ns", c.START_NS, c.END_NS]
    )
    negotiate = ended["negotiate_end_ns"] - ended["negotiate_start_ns"]
    transfer = ended[c.END_NS] - ended[c.START_NS]
    return HorovodPhases(
        allreduces=len(ended),
        with_ticks=min(with_ticks, len(ended)),
        negotiate_ns=float(negotiate.median()) if len(ended) else float("nan"),
        transfer_ns=float(transfer.median()) if len(ended) else float("nan"),
    )
