"""Jobs that send all dead letters of a group again, within fixed queue offsets.

    queues -> letters by queue offset -> without those of another filter or with a receipt -> copies

A letter is sent, then its receipt is written, then the next one is sent. So a crash leaves at most
one letter in doubt, and a job that is started again skips all others. Letters that arrive after the
start, also letters that fail again, are beyond the offsets of the job.
"""

import asyncio
import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from reput.client.core.retry import SendFailed
from reput.client.dead_letters import copy, problem_of
from reput.client.message import ReceivedMessage, SendResult
from reput.clock import Clock
from reput.console.access import User
from reput.console.audit import AuditEntry, AuditLog
from reput.console.resends import (
    RESENT,
    ReceiptNotKept,
    ResendReceipt,
    Resends,
    place_text,
    target,
)
from reput.console.scan import ScanPart
from reput.console.search import Conditions, Question, Span
from reput.console.sources.live import Live
from reput.console.sources.live_messages import LiveMessages
from reput.errors import (
    BrokerError,
    ConnectionLost,
    CorruptRecord,
    Overloaded,
    RemotingError,
    ReputError,
    RequestTimedOut,
    Unreachable,
)
from reput.format.codes import ResponseCode
from reput.html.texts import count_text

if TYPE_CHECKING:
    from reput.client.producer import Producer

RATE, RATE_MAX = 100, 1_000
"""Default and maximum number of letters per second."""
RUNNING_MAX = 2
KEPT_MAX = 50
"""Maximum number of ended jobs that are remembered."""
PROBLEMS_MAX = 200
"""Maximum number of a job's problems that are kept; more are counted."""
REFUSED_MAX = 20
"""Sends that brokers may refuse consecutively; then the job fails."""
PAUSES_S = (1, 5, 15, 30)
"""Pauses before a read or send without an answer is repeated; then the job fails."""
STOP_S = 5
"""Time that a job may take to end when the console stops."""
_PART = 32
_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
ACTION = "resend all dead letters"
_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Sleep = Callable[[float, asyncio.Event], Awaitable[None]]
"""Function that waits for some seconds, or until an event is set."""


class JobRefused(ReputError):
    """A job cannot start while others run."""

    retriable = True


class State(enum.StrEnum):
    """State of a job."""

    RUNNING = "running"
    WAITING = "waiting"
    """A broker does not answer; requests to it are retried."""
    STOPPING = "stopping"
    DONE = "done"
    """Each letter was sent or skipped."""
    PARTLY = "partly"
    """All letters were processed, but some failed or could not be read."""
    STOPPED = "stopped"
    FAILED = "failed"
    """The job has ended before its last letter; starting it again continues it."""


ENDED = (State.DONE, State.PARTLY, State.STOPPED, State.FAILED)


@dataclass(frozen=True, slots=True)
class ResendOrder:
    """A resend, as its preview has shown it."""

    group: str
    to: str
    """One of ``resends.TO``."""
    user: User
    question: Question
    """Topic of the dead letters, and the filter that selects them."""
    spans: tuple[Span, ...]
    """The offsets of the job, which do not change."""
    rate: int
    """Maximum number of letters per second."""


@dataclass(slots=True)
class QueueReceipt:
    """Progress of a job in a queue."""

    broker: str
    queue_id: int
    low: int
    high: int
    """Queue offset after the last letter of the job."""
    next: int
    """Queue offset of the next letter to look at."""
    sent: int = 0
    skipped: int = 0
    """Letters that were sent again before."""
    failed: int = 0
    gaps: int = 0
    """Ranges of letters that could not be read, as they have expired."""

    @property
    def text(self) -> str:
        """The receipt as a sentence."""
        parts = [f"{self.sent:,} sent", f"{self.skipped:,} sent before", f"{self.failed:,} failed"]
        if self.next < self.high:
            parts.append(f"offsets {self.next} to {self.high - 1} not looked at")
        return f"{self.broker} queue {self.queue_id}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class LetterProblem:
    """A letter that was not sent, or whose result is unknown."""

    place: str
    """Broker, queue and queue offset."""
    reason: str


@dataclass
class ResendJob:
    """A resend that runs, or has ended."""

    id: str
    order: ResendOrder
    begun_ms: int
    queues: list[QueueReceipt]
    state: State = State.RUNNING
    reason: str = ""
    """Reason why the job waits or has ended early."""
    ended_ms: int | None = None
    problems: list[LetterProblem] = field(default_factory=list)
    problem_count: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that ends the job once the current letter is sent."""
    version: int = 0
    """Number of changes."""

    @property
    def has_ended(self) -> bool:
        """True if the job has ended."""
        return self.state in ENDED

    def total(self, name: str) -> int:
        """Return the sum of a count over all queues."""
        return sum(getattr(queue, name) for queue in self.queues)

    @property
    def unread(self) -> int:
        """Number of offsets that were not processed."""
        return sum(queue.high - queue.next for queue in self.queues)

    @property
    def text(self) -> str:
        """The outcome as a sentence."""
        counts = (
            f"{count_text(self.total('sent'), 'letter')} sent, "
            f"{self.total('skipped'):,} skipped (sent before), {self.total('failed'):,} failed, "
            f"{self.unread:,} not looked at"
        )
        return f"{counts}: {self.reason}" if self.reason else counts

    def add_problem(self, place: str, reason: str) -> None:
        """Record a problem; only the first problems are kept."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(LetterProblem(place, reason))

    def document(self) -> Mapping[str, Any]:
        """Return the job for its page."""
        order, question = self.order, self.order.question
        return {
            "id": self.id,
            "group": order.group,
            "to": order.to,
            "user": order.user.name,
            "rate": order.rate,
            "filter": {
                "begin_ms": question.begin_ms,
                "end_ms": question.end_ms,
                "key": question.key,
                "tags": list(question.tags),
                "text": question.text,
            },
            "state": self.state.value,
            "has_ended": self.has_ended,
            "reason": self.reason,
            "begun_ms": self.begun_ms,
            "ended_ms": self.ended_ms,
            "letters": sum(queue.high - queue.low for queue in self.queues),
            "sent": self.total("sent"),
            "skipped": self.total("skipped"),
            "failed": self.total("failed"),
            "not_looked_at": self.unread,
            "queues": self.queues,
            "problems": self.problems,
            "problem_count": self.problem_count,
        }


class _JobFailed(Exception):
    """The end of a job before its last letter."""


class _JobStopped(Exception):
    """The end of a job that a user has stopped, or the end of the console."""


class ResendJobs:
    """The jobs of a console: all running ones, and the last ones that have ended.

    Args:
        clock: The time.
        resends: The receipts.
        audit: The audit log, which gets a line at the end of each job.
        sleep: Waits; tests pass their own.
    """

    def __init__(
        self, clock: Clock, resends: Resends, audit: AuditLog, sleep: Sleep | None = None
    ) -> None:
        self._clock = clock
        self._resends = resends
        self._audit = audit
        self._sleep = sleep or _sleep
        self._jobs: dict[str, ResendJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def of_group(self, group: str) -> list[ResendJob]:
        """Return the jobs of a group, the last one first."""
        return [job for job in reversed(self._jobs.values()) if job.order.group == group]

    def get(self, group: str, job_id: str) -> ResendJob | None:
        """Return a job of a group; None if it does not exist or was forgotten."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.order.group == group else None

    def check_free(self, group: str) -> None:
        """Check that a job of a group may start. Raises ``JobRefused``."""
        running = [job for job in self._jobs.values() if not job.has_ended]
        for job in running:
            if job.order.group == group:
                raise JobRefused(f"job {job.id} of {group} is running: stop it, or wait for it")
        if len(running) >= RUNNING_MAX:
            groups = ", ".join(job.order.group for job in running)
            raise JobRefused(f"{RUNNING_MAX} jobs are running ({groups}): wait for one to end")

    def start(self, order: ResendOrder, live: Live) -> ResendJob:
        """Start a job.

        Raises:
            JobRefused: Another one of the group runs, or too many of other groups do.
            ReceiptNotKept: The file of receipts has no room.
        """
        self.check_free(order.group)
        self._resends.check_room(sum(span.high - span.low for span in order.spans))
        begun_ms = self._clock.now_ms()
        number = begun_ms
        while str(number) in self._jobs:
            number += 1
        queues = [QueueReceipt(*span.queue, span.low, span.high, span.low) for span in order.spans]
        job = self._jobs[str(number)] = ResendJob(str(number), order, begun_ms, queues)
        self._forget_old()
        run = _JobRun(job, live, self._clock, self._resends, self._sleep)
        self._tasks[job.id] = asyncio.create_task(self._run(job, run), name=f"resend job {job.id}")
        return job

    def _forget_old(self) -> None:
        ended = [key for key, job in self._jobs.items() if job.has_ended]
        for key in ended[: max(0, len(ended) - KEPT_MAX)]:
            del self._jobs[key]

    def stop(self, job: ResendJob, reason: str) -> None:
        """Stop a job after the letter that is being sent."""
        if not job.has_ended and not job.stopping.is_set():
            job.state, job.reason = State.STOPPING, reason
            job.version += 1
            job.stopping.set()

    async def close(self) -> None:
        """End all jobs; after ``STOP_S`` they are cut."""
        for job in self._jobs.values():
            self.stop(job, "the console was stopped")
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait(self, job: ResendJob) -> None:
        """Return when a job has ended."""
        if (task := self._tasks.get(job.id)) is not None:
            await asyncio.wait([task])

    async def _run(self, job: ResendJob, run: "_JobRun") -> None:
        try:
            await run.run()
        except _JobStopped:
            job.state = State.STOPPED
            job.reason = f"{job.reason}; {run.doubt}" if run.doubt else job.reason
        except _JobFailed as failure:
            job.state, job.reason = State.FAILED, str(failure)
        except ReputError as error:  # the producer cannot start
            job.state, job.reason = State.FAILED, str(error)
        except asyncio.CancelledError:
            job.state, job.reason = State.STOPPED, f"{job.reason}; {run.doubt or 'cut'}"
            raise
        except Exception as error:  # noqa: BLE001 - the edge of a task: its page has the reason
            job.state, job.reason = State.FAILED, f"a bug: {error!r}"
            _log.exception("resend job %s failed", job.id)
        else:
            is_whole = not (job.total("failed") or job.total("gaps"))
            job.state, job.reason = State.DONE if is_whole else State.PARTLY, ""
        finally:
            job.ended_ms = self._clock.now_ms()
            job.version += 1
            self._tasks.pop(job.id, None)
            self._record(job)

    def _record(self, job: ResendJob) -> None:
        by_queue = "; ".join(queue.text for queue in job.queues)
        outcome = {State.DONE: "done", State.FAILED: "failed"}.get(job.state, "partly")
        entry = AuditEntry(
            time_ms=self._clock.now_ms(),
            user=job.order.user.name,
            address="",
            action=f"{ACTION}: end",
            arguments={"group": job.order.group, "job": job.id},
            outcome=outcome,
            detail=f"{job.text}. {by_queue}",
        )
        try:
            self._audit.add(entry)
        except ReputError as error:
            job.reason = f"{job.reason}; {error}".lstrip("; ")
            _log.error("the end of resend job %s is in no audit log: %s", job.id, error)


async def _sleep(duration_s: float, stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(duration_s):
            await stop.wait()


class _JobRun:
    """One run through the queues of a job."""

    def __init__(
        self, job: ResendJob, live: Live, clock: Clock, resends: Resends, sleep: Sleep
    ) -> None:
        self._job = job
        self._order = job.order
        self._live = live
        self._clock = clock
        self._resends = resends
        self._sleep = sleep
        self._conditions = Conditions(job.order.question)
        self._source = LiveMessages(live.admin)
        self._next_ms = 0.0
        self._refused_count = 0
        self._sending = ""

    @property
    def doubt(self) -> str:
        """A sentence about the letter that was sent without an answer, if any."""
        return f"letter {self._sending} may have been sent" if self._sending else ""

    async def run(self) -> None:
        """Run to the end. Raises ``_JobFailed`` and ``_JobStopped``."""
        async with self._live.producer() as producer:
            for queue in self._job.queues:
                while queue.next < queue.high:
                    await self._part(queue, producer)

    async def _part(self, queue: QueueReceipt, producer: "Producer") -> None:
        high = min(queue.next + _PART, queue.high)
        part = await self._patiently(lambda: self._read(queue, high))
        for message in part.messages:
            self._check_stop()
            if self._is_wanted(message, queue):
                await self._letter(message, queue, producer)
            queue.next = message.queue_offset + 1
            self._job.version += 1
        for missing in part.missing:
            queue.gaps += 1
            self._job.add_problem(missing.where, missing.why)
        queue.next = high
        self._job.version += 1
        self._check_stop()

    async def _read(self, queue: QueueReceipt, high: int) -> ScanPart:
        span = Span(queue.broker, queue.queue_id, queue.next, high)
        part = await self._source.read(span, self._order.question)
        if part.is_failed:
            self._source = LiveMessages(self._live.admin)  # which remembers no silent broker
            raise RemotingError(f"{queue.broker} cannot be read: {_reasons(part)}")
        return part

    def _is_wanted(self, message: ReceivedMessage, queue: QueueReceipt) -> bool:
        try:
            return self._conditions.match(message)
        except CorruptRecord as error:
            self._fail(message, queue, f"it cannot be checked: {error}")
            return False

    async def _letter(
        self, message: ReceivedMessage, queue: QueueReceipt, producer: "Producer"
    ) -> None:
        """Send a letter unless it has a receipt."""
        order = self._order
        place = (order.group, queue.broker, queue.queue_id, message.queue_offset)
        if self._resends.has(place, message.message_id):
            queue.skipped += 1
            return
        text = place_text(*place[1:])
        try:
            topic = target(message, order.group, order.to, order.user)
            letter = copy(message, topic, {RESENT: text})
        except ReputError as error:
            self._fail(message, queue, str(error))
            return
        await self._pace()
        self._sending = text
        try:
            result = await self._patiently(lambda: _answered(producer.send(letter)))
        except _Refused as refusal:
            self._sending = ""
            self._fail(message, queue, str(refusal))
            self._refused_count += 1
            if self._refused_count >= REFUSED_MAX:
                reason = f"{REFUSED_MAX} consecutive letters were refused: {refusal}"
                queue.next = message.queue_offset + 1
                raise _JobFailed(reason) from refusal
            return
        self._keep_receipt(message, queue, topic, result)

    def _keep_receipt(
        self, message: ReceivedMessage, queue: QueueReceipt, topic: str, result: SendResult
    ) -> None:
        self._refused_count = 0
        queue.sent += 1
        if (problem := problem_of(result)) is not None:
            self._job.add_problem(self._sending, problem)
        order = self._order
        receipt = ResendReceipt(
            *(order.group, queue.broker, queue.queue_id, message.queue_offset),
            *(self._clock.now_ms(), order.user.name, topic, result.offset_message_id),
            message.message_id,
        )
        try:
            self._resends.add(receipt)
        except ReceiptNotKept as error:
            queue.next = message.queue_offset + 1
            reason = f"letter {self._sending} was sent, but its receipt is not kept: {error}"
            raise _JobFailed(reason) from error
        self._sending = ""

    def _fail(self, message: ReceivedMessage, queue: QueueReceipt, reason: str) -> None:
        queue.failed += 1
        place = place_text(queue.broker, queue.queue_id, message.queue_offset)
        self._job.add_problem(place, reason)

    async def _pace(self) -> None:
        """Wait until the next letter may be sent. Raises ``_JobStopped``."""
        now_ms = self._clock.monotonic_ms()
        if self._next_ms > now_ms:
            await self._sleep((self._next_ms - now_ms) / 1000, self._job.stopping)
            self._check_stop()
        self._next_ms = max(self._next_ms, now_ms) + 1000 / self._order.rate

    async def _patiently(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a call until it has a result.

        Raises:
            _JobFailed: There was none, several times.
            _JobStopped: The job is to end.
            _Refused: The call is a send, and was refused.
        """
        for pause_s in PAUSES_S:
            try:
                return await call()
            except RemotingError as error:
                self._wait_for(f"{error}; asked again in {pause_s} s")
                await self._sleep(pause_s, self._job.stopping)
                self._check_stop()
                self._job.state, self._job.reason = State.RUNNING, ""
        try:
            return await call()
        except RemotingError as error:
            reason = f"{error}; asked {len(PAUSES_S) + 1} times"
            raise _JobFailed(f"{reason}; {self.doubt}" if self.doubt else reason) from error

    def _wait_for(self, reason: str) -> None:
        self._check_stop()
        self._job.state, self._job.reason = State.WAITING, reason
        self._job.version += 1

    def _check_stop(self) -> None:
        if self._job.stopping.is_set():
            raise _JobStopped


class _Refused(Exception):
    """A send that a broker has answered with an error, or that the client does not make."""


async def _answered(send: Awaitable[SendResult]) -> SendResult:
    """Return the result of a send.

    Raises:
        _Refused: The letter is refused, and another one may not be.
        RemotingError: There was no answer, or the broker is busy.
    """
    try:
        return await send
    except RemotingError as error:
        if _may_pass(error.reason if isinstance(error, SendFailed) else error):
            raise
        raise _Refused(str(error)) from error
    except ReputError as error:
        raise _Refused(str(error)) from error


def _may_pass(error: RemotingError) -> bool:
    """Return whether an error is a temporary one of the broker, not one of a letter or topic."""
    if isinstance(error, BrokerError):
        return error.response_code in _BUSY
    return isinstance(error, (Unreachable, ConnectionLost, RequestTimedOut, Overloaded))


def _reasons(part: ScanPart) -> str:
    return "; ".join(missing.why for missing in part.missing)
