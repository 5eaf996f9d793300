"""How much of a step's straggler delay is whose? The Shapley value of the airport game.

In a step everybody waits for the last. The delay, last arrival minus baseline, is shared so that
each stretch of it is paid in equal parts by the ranks that had not yet arrived (Littlechild and
Owen 1973). The shares add up to the delay, and two equally late ranks pay the same, where "last
minus second last" would blame neither.
"""

from __future__ import annotations

import numpy as np

from hpcprof.analyses.step_matrix import Matrix


def blame(lateness: Matrix) -> Matrix:
    """Share of each rank, same unit and shape [step, rank] as ``lateness``.

    ``lateness`` is arrival minus baseline; a negative one counts as on time. Each row of the
    result sums to the row's largest lateness (or 0).
    """
    late = np.maximum(lateness, 0.0)
    order = np.argsort(late, axis=1)
    ordered = np.take_along_axis(late, order, axis=1)
    increments = np.diff(ordered, axis=1, prepend=0.0)
    still_absent = np.arange(late.shape[1], 0, -1)
    shares = np.cumsum(increments / still_absent, axis=1)
    result = np.empty_like(late)
    np.put_along_axis(result, order, shares, axis=1)
    return result
