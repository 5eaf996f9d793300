"""One recording of nsys while the training runs: opens and closes its window, ends it early.

Called once a turn by nsys_watch; never waits. What it does goes into the manifest at once.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from hpcprof.artifacts import node_time, rank_state
from hpcprof.artifacts.window import CUDA, HOST
from hpcprof.launch import marked_steps, nsys_files
from hpcprof.launch.early_end import EarlyEnd
from hpcprof.launch.nsys_control import STARTS, STOPS, Command, Work
from hpcprof.launch.nsys_start import Plan, Running
from hpcprof.launch.nsys_writing import Writing
from hpcprof.launch.rank_messages import RankMessages
from hpcprof.launch.rank_record import RankRecord
from hpcprof.launch.signals import SignalInbox

# phases, in their order; a recording without a window begins with RECORDING
WAITING, STARTING, RECORDING, STOPPING, OVER = range(5)

# `nsys start` takes 0.15 to 0.25 s, `nsys stop` as long as it writes its report
START_SECONDS = 30.0
STOP_SECONDS = 600.0
# after the training's end the job waits for it: no longer than this while it does nothing
IDLE_STOP_SECONDS = 60.0
# nsys records on after a stop that failed
RETRY_SECONDS = 30.0
_MAX_STOPS = 3

_TOO_SHORT = "the steps to record were over before nsys had started; name more of them"

# How soon a message is noticed. A look is one failing open of a node-local file (2 µs): ten or
# twenty a second are nothing beside nsys, and end with the window
_PENDING_SECONDS = 0.1
_ACTIVE_SECONDS = 0.05
# in mode cuda the training tells nsys itself, and a look lists what the agent has open
_CUDA_SECONDS = 0.25
_QUIET_SECONDS = 1.0
# nsys's agent is there before the training; one that has not been found by now is of another nsys
_AGENT_SECONDS = 5.0
_AGENT_LOOK_SECONDS = 1.0
_NO_AGENT = "nsys's agent was not found, so what nsys does is known from the training only"


class Recording:
    """``stopped``: why it ended before its time, in words; None when it did not.

    ``problem``: what was wrong with nsys's beginning or ending it; None when nothing was.
    ``is_lost``: set by whoever calls ``look`` and cannot any more.
    ``stream``: where nsys records to, in its TMPDIR; None as long as it has not been seen.
    """

    def __init__(
        self,
        plan: Plan,
        running: Running,
        record: RankRecord,
        messages: RankMessages,
        inbox: SignalInbox,
    ) -> None:
        self.stopped: str | None = None
        self.problem: str | None = None
        self.stream: Path | None = None
        self.is_lost = False
        self.phase = RECORDING
        self._plan = plan
        self._running = running
        self._record = record
        self._messages = messages
        self._inbox = inbox
        self._early = EarlyEnd(messages, plan.scratch, record.paths.root)
        self._agent: int | None = None
        self._agent_at = 0.0  # when to look for it again
        self._agent_due = time.monotonic() + _AGENT_SECONDS
        self._work: Work | None = None
        self._stops_left = _MAX_STOPS
        self._retry_at: float | None = None  # the next stop after one that failed
        self._retry_why: str | None = None  # what ``stopped`` was then
        self._started_ns = 0  # the end of nsys start
        self._seen_ns = 0  # when the recording was last seen to go on
        self._busy: list[list[object]] = []
        self._mode = plan.window.mode if plan.window is not None else None
        if plan.window is None:
            self._early.recording_begins()
        else:
            self.phase = WAITING
            record.profiler["window"] = {
                "steps": str(plan.window.steps),
                "mode": self._mode,
                "opened_ns": None,
                "closed_ns": None,
            }

    @property
    def interval_seconds(self) -> float:
        """How soon ``look`` wants to be called again."""
        if self.phase == OVER or (self._mode is None and self.phase == RECORDING):
            return _QUIET_SECONDS
        if self._mode == CUDA and self.phase in (WAITING, RECORDING):
            return _CUDA_SECONDS
        return _PENDING_SECONDS if self.phase == WAITING else _ACTIVE_SECONDS

    @property
    def is_settled(self) -> bool:
        """False while nsys starts, stops or writes at our word."""
        return self._work is None

    @property
    def outlives_command_line(self) -> bool:
        """Whether its end is asked for by a command of ours and not by nsys's first one."""
        return self._mode == HOST

    def look(self, *, application_ended: bool, nsys_ended: bool) -> None:
        """Take notice of what has come, and go on to the next phase where it is time."""
        self._messages.look()
        if self._work is not None:
            if application_ended:
                self._work.expect_work(IDLE_STOP_SECONDS)
            if self._work.has_ended(nsys_ended=nsys_ended):
                self._end_work(self._work)
        elif self._retry_at is not None and not application_ended:
            self._retry_stop(self._retry_at)
        elif application_ended:
            # nsys ends its recording by itself then, and writes it (tried with 2022.4)
            self.phase = OVER
        else:
            self._follow_training()
            self._stop_when_wanted()
        if self.phase == OVER or (self.phase == WAITING and self.stopped):
            self._messages.answer(self._outcome())

    def interrupted(self, signum: int) -> None:
        """nsys has been given TERM or INT: it ends a recording, and writes it (tried, 2022.4).

        Nothing changes for one of the whole run, which ends with the training then.
        """
        if self._mode is None or self.phase not in (WAITING, RECORDING):
            return
        self.stopped, self._retry_at = f"stopped by signal {signum}", None
        if self.phase == RECORDING:
            self.phase = STOPPING
            self._work = Work(STOPS, node_time.monotonic_ns(), None, self._writing())
        else:
            self.phase = OVER  # a start is refused from now on
        self._record.update()

    def give_up(self) -> None:
        """Wait no longer for a command that still runs."""
        if self._work is not None:
            self._work.give_up()

    def never_began(self) -> str | None:
        """Why nothing was recorded, when that is because the window never opened; else None."""
        window = self._plan.window
        if window is None or self._record.profiler["window"]["opened_ns"] is not None:
            return None
        first = window.steps.first
        failure = rank_state.find(self._messages.state, rank_state.WINDOW_FAILED)
        if failure is not None and failure.strip():
            return failure.strip()
        spans = self._record.paths.spans(self._record.identity.rank)
        if marked_steps.reaches(spans, first):
            return f"no step of {window.steps} was recorded"
        if self.stopped:
            return f"{self.stopped}, before step {first}, the first to record"
        why = f"the training ended before step {first}, the first to record"
        return why if spans.exists() else f"{why}; it marked no step"

    def _follow_training(self) -> None:
        if self._mode == HOST and self.phase == WAITING:
            opened_ns = self._said(rank_state.OPEN_WINDOW)
            if opened_ns:
                self._start(opened_ns)
                self._note_window(opened_ns=opened_ns)
        elif self._mode == HOST and self.phase == RECORDING:
            closed_ns = self._said(rank_state.CLOSE_WINDOW)
            if closed_ns:
                self._stop(closed_ns)
                if closed_ns < self._started_ns:
                    self._record.warnings.append(_TOO_SHORT)
                self._note_window(closed_ns=closed_ns)
        elif self._mode == CUDA:
            self._believe_training()
        if self.phase == RECORDING or self._mode == CUDA:
            self._follow_stream()

    def _believe_training(self) -> None:
        """It has told nsys itself; an agent that we do not find has nothing to show."""
        if self.phase == WAITING:
            opened_ns = self._said(rank_state.OPEN_WINDOW)
            if opened_ns:
                self._note_window(opened_ns=opened_ns)
                self._begin_recording()
        if self.phase == RECORDING:
            closed_ns = self._said(rank_state.CLOSE_WINDOW)
            if closed_ns:
                self._range_ended(closed_ns)

    def _range_ended(self, since_ns: int) -> None:
        self._note_window(closed_ns=since_ns)
        self.phase = STOPPING
        self._work = Work(STOPS, since_ns, None, self._writing())

    def _said(self, message: str) -> int:
        """When the training left the message, CLOCK_MONOTONIC ns; 0 when it has not yet."""
        text = rank_state.find(self._messages.state, message)
        if text is None:
            return 0
        now = node_time.monotonic_ns()
        return min(int(text), now) if text.strip().isdigit() else now

    def _follow_stream(self) -> None:
        """Find the recording. In mode cuda it also tells when nsys began and ended.

        nsys's agent has it open from the first moment to the last (2022.4, seen with -c nvtx; the
        end of the range keeps the training waiting until the report is written). The times of the
        calls themselves are in the training's spans.
        """
        if self.stream is not None and self._mode != CUDA:
            return
        if self.phase not in (WAITING, RECORDING):
            return
        self._look_for_agent()
        found = nsys_files.open_stream(self._agent)
        now = node_time.monotonic_ns()
        if found is not None:
            if self.phase == WAITING:
                self._note_window(opened_ns=now)
                self._begin_recording()
            self.stream, self._seen_ns = found, now
        elif self._mode == CUDA and self.phase == RECORDING and self.stream is not None:
            self._range_ended(self._seen_ns)

    def _look_for_agent(self) -> None:
        now = time.monotonic()
        if self._agent is not None or now < self._agent_at:
            return
        self._agent_at = now + _AGENT_LOOK_SECONDS
        self._agent = nsys_files.find_agent(self._running.attempt.mark)
        if self._agent is None and self._mode == CUDA and now > self._agent_due:
            self._agent_due = math.inf
            self._record.warnings.append(_NO_AGENT)

    def _stop_when_wanted(self) -> None:
        reason = self._early.asked()
        if reason is None and self.phase == RECORDING and self.stopped is None:
            reason = self._early.needed(nsys_files.size(self.stream) if self.stream else 0)
        if reason is not None and self.phase in (WAITING, RECORDING) and self.stopped is None:
            self.stopped = reason.text
            self._record.warnings += [reason.warning] if reason.warning else []
            self._record.update()
        if self.stopped is None:
            return
        if self.phase == RECORDING:
            self._stop(node_time.monotonic_ns())
        elif self.phase == WAITING and self._mode == HOST:
            self.phase = OVER  # nobody will start it; in mode cuda the training still may

    def _start(self, since_ns: int) -> None:
        self.phase = STARTING
        argv = self._plan.commands.start_argv(self._running.session)
        self._work = self._run(argv, START_SECONDS, STARTS, since_ns)

    def _stop(self, since_ns: int) -> None:
        self._stops_left -= 1
        self.phase = STOPPING
        argv = self._plan.commands.stop_argv(self._running.session)
        self._work = self._run(argv, STOP_SECONDS, STOPS, since_ns)

    def _run(self, argv: list[str], limit_seconds: float, why: str, since_ns: int) -> Work | None:
        try:
            command = Command(
                self._plan, self._running.attempt, argv, self._inbox, limit_seconds=limit_seconds
            )
        except OSError as error:
            self._fail(f"nsys {argv[1]} could not be run: {error.strerror}")
            return None
        return Work(why, since_ns, command, self._writing() if why == STOPS else None)

    def _end_work(self, work: Work) -> None:
        self._work = None
        self._busy.append(work.busy())
        self._record.update(profiler_busy=self._busy)
        if work.problem is not None:
            is_stop = self.phase == STOPPING
            self._fail(work.problem)
            if is_stop:
                self._plan_retry()
        elif self.phase == STARTING:
            self._started_ns = node_time.monotonic_ns()
            self._begin_recording()
        else:
            self.problem = None  # of an earlier stop
            self.phase = OVER

    def _plan_retry(self) -> None:
        """A stop has failed: nsys goes on recording, for all we know."""
        self._retry_why, self.stopped = self.stopped, None
        if self._stops_left:
            self.phase = RECORDING
            self._retry_at = time.monotonic() + RETRY_SECONDS

    def _retry_stop(self, at: float) -> None:
        if time.monotonic() < at:
            return
        self._retry_at, self.stopped = None, self._retry_why
        self._stop(node_time.monotonic_ns())

    def _begin_recording(self) -> None:
        self.phase = RECORDING
        self._early.recording_begins()

    def _writing(self) -> Writing:
        return Writing(self._record.paths, self._record.identity.rank, self._running)

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            self._record.warnings.append(problem)
        self.problem = problem
        self._record.update()
        self.phase = OVER

    def _note_window(self, **moments: int) -> None:
        self._record.profiler["window"].update(moments)
        self._record.update()

    def _outcome(self) -> str:
        """The answer to STOP."""
        if self.problem is not None:
            return f"problem: {self.problem}"
        if self._mode == CUDA and self.phase == WAITING and self._agent is None:
            return f"problem: not known whether it records: {_NO_AGENT}"
        paths, rank = self._record.paths, self._record.identity.rank
        size = nsys_files.size(paths.nsys_report(rank)) or nsys_files.size(paths.nsys_stream(rank))
        return f"ok: the recording is written, {size} bytes" if size else "ok: nothing was recorded"
