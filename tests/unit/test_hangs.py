"""Which rank was missing when no step came: told only where the recordings tell it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from hpcprof.analyses import hangs as h
from hpcprof.analyses.hangs import hang_episodes
from hpcprof.trace.model import Hang, RankInfo

pytestmark = pytest.mark.unit

S = 1_000_000_000


def infos(*notes, horovod_size=None):
    """One rank per argument: its hangs as (step, seconds)."""
    return [
        RankInfo(
            rank=rank,
            local_rank=0,
            node=f"node{rank}",
            world_size=len(notes),
            hangs=tuple(Hang(*hang) for hang in of_rank),
            horovod_size=horovod_size,
        )
        for rank, of_rank in enumerate(notes)
    ]


def frames(*arrivals_s, step=58, length_s=700.0):
    """rank → frame in which ``step`` takes ``length_s`` and the next one 1 s."""
    return {
        rank: pd.DataFrame(
            {
                "arrival_ns": [round(arrival * S), S // 2],
                "sync_ns": [round((length_s - arrival) * S), S // 2],
            },
            index=[step, step + 1],
        )
        for rank, arrival in enumerate(arrivals_s)
    }


def only(*args):
    (found,) = hang_episodes(*args)
    return found


def test_a_rank_one_step_behind_the_others_was_missing():
    notes = infos([(57, 610)], [(56, 612)], [(57, 610)])
    found = only(notes, {0: 57, 1: 56, 2: 57}, {})
    assert (found.ranks, found.step, found.seconds) == ((0, 1, 2), 57, 612)
    assert (found.went_on, found.behind, found.told_by) == (False, (1,), h.RECORDS)


def test_a_rank_without_a_note_of_its_own_is_told_by_its_record_when_nothing_came_after():
    notes = infos([(57, 610)], [], [(57, 610)])
    found = only(notes, {0: 57, 1: 56, 2: 57}, {})
    assert (found.ranks, found.behind, found.told_by) == ((0, 2), (1,), h.RECORDS)
    # a record that ends long before may have been cut off: nothing is said
    found = only(notes, {0: 57, 1: 20, 2: 57}, {})
    assert (found.behind, found.told_by) == ((), h.UNKNOWN)


def test_when_all_had_ended_the_same_step_and_none_came_nobody_is_named():
    notes = infos([(57, 610)], [(57, 611)])
    found = only(notes, {0: 57, 1: 57}, frames(1.0, 2.0, step=50))
    assert (found.went_on, found.behind, found.told_by) == (False, (), h.UNKNOWN)


@pytest.mark.parametrize("step", [58, 59])  # 59: after the last allreduce of step 58
@pytest.mark.parametrize(
    ("arrivals_s", "behind", "told_by"),
    [
        ((1.0, 690.0, 2.0), (1,), h.ARRIVAL),
        ((1.0, 2.0, 3.0), (), h.ALL_ARRIVED),
        ((650.0, 690.0, 680.0), (), h.ALL_LATE),
    ],
)
def test_when_it_went_on_the_long_step_tells_who_was_late(step, arrivals_s, behind, told_by):
    notes = infos([(57, 610)], [], [(57, 610)])
    long_one = frames(*arrivals_s, step=step)
    for frame in long_one.values():
        if step == 59:
            frame.loc[58] = S // 2
    found = only(notes, {0: 90, 1: 90, 2: 90}, long_one)
    assert (found.went_on, found.behind, found.told_by) == (True, behind, told_by)


def test_a_rank_whose_long_step_is_not_known_makes_that_untellable():
    notes = infos([(57, 610)], [])
    partial = frames(1.0, 690.0)
    partial[1] = partial[1].loc[[59]]
    assert only(notes, {0: 90, 1: 90}, partial).told_by == h.UNKNOWN
    assert only(notes, {0: 90, 1: 90}, {}).told_by == h.UNKNOWN


@pytest.mark.parametrize("last", [101, 300])  # the second ended the job, or it went on
@pytest.mark.parametrize("odd", [0, 3])
def test_notes_of_two_hangs_do_not_make_those_of_the_first_one_behind(odd, last):
    notes = [[(100, 610), (101, 620)] for _ in range(4)]
    del notes[odd][0]
    found = hang_episodes(infos(*notes), dict.fromkeys(range(4), last), {})
    noted = tuple(rank for rank in range(4) if rank != odd)
    assert [(e.ranks, e.step, e.went_on, e.behind, e.told_by) for e in found] == [
        (noted, 100, True, (), h.UNKNOWN),
        ((0, 1, 2, 3), 101, last > 101, (), h.UNKNOWN),
    ]


def test_a_rank_behind_in_the_notes_is_believed_when_the_long_step_confirms_it():
    notes, ended = infos([(57, 610)], [(56, 612)], [(57, 610)]), dict.fromkeys(range(3), 90)
    found = only(notes, ended, frames(1.0, 690.0, 2.0))
    assert (found.went_on, found.behind, found.told_by) == (True, (1,), h.RECORDS)
    for arrivals_s in ((1.0, 2.0, 690.0), (1.0, 2.0, 3.0), (650.0, 690.0, 680.0)):
        found = only(notes, ended, frames(*arrivals_s))
        assert (found.behind, found.told_by) == ((), h.UNKNOWN)
    assert only(notes, ended, {}).told_by == h.UNKNOWN


def test_a_rank_that_ended_a_step_after_its_note_was_not_missing_when_the_job_ended():
    notes = infos([(100, 610)], [(100, 610)], [(101, 610)])
    found = only(notes, {0: 101, 1: 101, 2: 101}, {})
    assert (found.went_on, found.behind, found.told_by) == (False, (), h.UNKNOWN)
    found = only(notes, {0: 101, 1: 100, 2: 101}, {})
    assert (found.went_on, found.behind, found.told_by) == (False, (1,), h.RECORDS)


def test_ranks_that_horovod_does_not_connect_are_behind_nobody():
    notes = infos([(57, 610)], [(56, 610)], horovod_size=1)
    assert only(notes, {0: 57, 1: 56}, {}).told_by == h.UNKNOWN


def test_hangs_at_other_steps_are_others_and_one_rank_notes_each_once():
    notes = infos([(10, 600), (57, 610)], [(11, 600), (57, 700)], [(200, 601)])
    found = hang_episodes(notes, dict.fromkeys(range(3), 300), {})
    assert [(e.ranks, e.step, e.seconds) for e in found] == [
        ((0, 1), 11, 600),
        ((0, 1), 57, 700),
        ((2,), 200, 601),
    ]
    again = hang_episodes(infos([(57, 600), (57, 1200)]), {0: 57}, {})
    assert [(e.step, e.seconds) for e in again] == [(57, 600), (57, 1200)]


def test_without_a_record_that_reaches_the_hang_it_is_not_known_whether_it_went_on():
    found = only(infos([(-1, 610)], [(-1, 610)]), {}, {})
    assert (found.step, found.went_on, found.told_by) == (None, None, h.UNKNOWN)
    # recording had stopped at step 20, on a full disk
    found = only(infos([(57, 610)], [(57, 610)]), {0: 20, 1: 20}, {})
    assert (found.went_on, found.told_by) == (None, h.UNKNOWN)
    found = only(infos([(-1, 610)], [(None, 610)]), {0: 30, 1: 30}, {})
    assert (found.ranks, found.went_on) == ((0, 1), True)


def test_ranks_whose_stacks_were_not_written_are_told_apart():
    notes = infos([(57, 610)], [(57, 610)])
    notes[1] = replace(notes[1], hangs=(Hang(57, 640, has_stacks=False),))
    assert only(notes, {0: 57, 1: 57}, {}).with_stacks == (0,)


def test_a_run_without_notes_has_no_hang():
    assert hang_episodes(infos([], []), {}, frames(1.0, 690.0)) == ()
