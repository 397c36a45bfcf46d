"""Resends of all dead letters of a group: preview, job, receipt; brokers that hang or refuse."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlencode

import pytest
from starlette.responses import StreamingResponse

from asgi import Answer, call
from console_forms import confirmation, hidden_fields
from reput.client import Message, Producer, producer
from reput.client.admin import Admin
from reput.client.core import requests
from reput.client.message import SendResult
from reput.clock import ManualClock, SystemClock
from reput.console import gate, live_rows, resending
from reput.console.access import Right, User
from reput.console.app import ROUTES, Console
from reput.console.audit import AuditLog
from reput.console.cluster import WatchedCluster
from reput.console.page import Query, View
from reput.console.parts import ConsoleParts
from reput.console.rendering import Renderer
from reput.console.resending import ResendJob, ResendJobs, State
from reput.console.resends import ReceiptNotKept, ResendReceipt, Resends
from reput.errors import BrokerError, RequestTimedOut
from reput.format import headers
from reput.format.codes import RequestCode, ResponseCode
from reput.testing import LocalBroker

LETTER_COUNT = 6
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
WAIT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A broker with orders in two queues, number n with the key ``key<n>`` and tag A or B."""

    async def fill() -> None:
        async with Producer("writers", namesrv=mq.namesrv_addr) as producer:
            for number in range(LETTER_COUNT + 1):
                body = b"number %d" % number
                tag = "AB"[number % 2]
                await producer.send(Message("Orders", body, tags=tag, keys=f"key{number}"))

    with LocalBroker(topics={"Orders": 1}) as mq:
        asyncio.run(fill())
        yield mq


@pytest.fixture
async def admin(broker: LocalBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.namesrv_addr) as admin:
        yield admin


async def kill(broker: LocalBroker, admin: Admin, group: str, numbers: range) -> None:
    """Make dead letters of orders."""
    await admin.create_group(group)
    orders = broker.messages("Orders")
    for number in numbers:
        header = headers.SendBackHeader(
            offset=orders[number].physical_offset,
            group=group,
            delay_level=-1,
            origin_msg_id=orders[number].message_id,
            origin_topic="Orders",
            unit_mode=False,
            max_reconsume_times=16,
        )
        request = requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await admin.calls.ask(broker.broker_addr, request)


class Site:
    """A console, and a group with dead letters of orders 0 to 5."""

    def __init__(self, broker: LocalBroker, admin: Admin, group: str, folder: Path) -> None:
        self.broker = broker
        self.admin = admin
        self.group = group
        self.folder = folder
        self.slept: list[float] = []
        self.start()

    def start(self) -> None:
        """Start a console, as after the end of another one."""
        clock = SystemClock()
        self.parts = ConsoleParts(
            clock,
            self.broker.namesrv_addr,
            WatchedCluster.of(self.admin, clock),
            AuditLog(self.folder / "audit.jsonl"),
            may_operate=True,
            resends=Resends(self.folder / "resends.jsonl"),
        )
        self.clock = ManualClock(1_700_000_000_000)
        self.jobs = ResendJobs(self.clock, self.parts.resends, self.parts.audit, self.sleep)
        self.parts.resend_jobs = self.jobs
        self.console = Console(self.parts)

    async def sleep(self, duration_s: float, stop: asyncio.Event) -> None:
        """Let the time pass."""
        self.slept.append(duration_s)
        self.clock.advance(round(duration_s * 1000))

    async def post(self, path: str, form: dict[str, str]) -> Answer:
        token = hidden_fields((await call(self.console, "/dlq")).text)["csrf"]
        fields = {**form, "csrf": token}
        url = f"/dlq/{self.group}/{path}"
        return await call(self.console, url, method="POST", form=fields, headers=SAME_ORIGIN)

    async def preview(self, **form: str) -> tuple[Answer, dict[str, str]]:
        """Return a preview and the fields of its confirmation."""
        answer = await self.post("resend-all", form)
        fields = confirmation(answer.text)
        if f"Type {self.group}" in answer.text:
            fields["typed"] = self.group
        return answer, fields

    async def begin(self, **form: str) -> ResendJob:
        """Preview and confirm a resend, and return its job."""
        preview, fields = await self.preview(**form)
        assert preview.status == 200, preview.text
        answer = await self.post("resend-all", fields)
        assert "has started" in answer.text, answer.text
        return self.jobs.of_group(self.group)[0]

    async def run(self, **form: str) -> ResendJob:
        """Run a resend to its end."""
        job = await self.begin(**form)
        async with asyncio.timeout(WAIT_S):
            await self.jobs.wait(job)
        assert job.has_ended
        return job

    def copies(self) -> list[str]:
        """Return the bodies in the retry topic."""
        copies = self.broker.messages(f"%RETRY%{self.group}")
        return sorted(message.body.decode() for message in copies)

    async def json(self, path: str = "") -> Any:
        url = f"/dlq/{self.group}{path}"
        return (await call(self.console, f"{url}{'&' if '?' in url else '?'}format=json")).data


@pytest.fixture
async def site(
    broker: LocalBroker, admin: Admin, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Site]:
    group = f"g{abs(hash(request.node.name))}"
    await kill(broker, admin, group, range(LETTER_COUNT))
    site = Site(broker, admin, group, tmp_path)
    yield site
    await site.jobs.close()


def bodies(*numbers: int) -> list[str]:
    return [f"number {number}" for number in numbers]


# --- preview and confirmation -------------------------------------------------------------------


async def test_all_letters_are_sent_and_the_receipt_has_each_queue(site: Site) -> None:
    preview, _ = await site.preview()
    assert f"Resend {LETTER_COUNT} dead letters of {site.group}" in preview.text
    assert f"%RETRY%{site.group}" in preview.text
    assert site.copies() == []
    job = await site.run(rate="1000")
    assert job.state is State.DONE
    assert site.copies() == bodies(*range(LETTER_COUNT))
    places = {m.properties["REPUT_RESENT"] for m in site.broker.messages(f"%RETRY%{site.group}")}
    assert places == {f"broker-a 0 {number}" for number in range(LETTER_COUNT)}
    data = (await site.json(f"/jobs/{job.id}"))["job"]
    assert (data["sent"], data["skipped"], data["failed"]) == (LETTER_COUNT, 0, 0)
    (queue,) = data["queues"]
    assert (queue["low"], queue["high"], queue["next"]) == (0, LETTER_COUNT, LETTER_COUNT)
    page = await call(site.console, f"/dlq/{site.group}/jobs/{job.id}")
    assert f"{LETTER_COUNT} letters sent" in page.text
    assert f'href="/dlq/{site.group}/jobs/{job.id}"' in (
        await call(site.console, f"/dlq/{site.group}")
    ).text  # fmt: skip
    end, start = site.parts.audit.newest()
    assert (start.action, start.outcome, end.action, end.outcome) == (
        *("resend all dead letters", "done"),
        *("resend all dead letters: end", "done"),
    )
    assert end.detail.endswith(f"broker-a queue 0: {LETTER_COUNT} sent, 0 sent before, 0 failed")


async def test_letters_that_arrive_after_the_preview_are_not_sent(site: Site) -> None:
    _, fields = await site.preview()
    await kill(site.broker, site.admin, site.group, range(LETTER_COUNT, LETTER_COUNT + 1))
    answer = await site.post("resend-all", fields)
    assert "has started" in answer.text
    (job,) = site.jobs.of_group(site.group)
    await site.jobs.wait(job)
    assert site.copies() == bodies(*range(LETTER_COUNT))
    # Another one sends that letter, and skips the others, also after a restart.
    site.start()
    job = await site.run()
    assert (job.total("sent"), job.total("skipped")) == (1, LETTER_COUNT)
    assert site.copies() == bodies(*range(LETTER_COUNT + 1))
    nothing, _ = await site.preview()
    assert nothing.status == 409
    assert "all that match were sent again before" in nothing.text


async def test_a_confirmation_is_refused_if_letters_were_sent_meanwhile(site: Site) -> None:
    _, fields = await site.preview()
    await site.run(key="key2")
    answer = await site.post("resend-all", fields)
    assert answer.status == 409
    assert "broker-a queue 0, sent before was 0 and is 1" in answer.text
    assert site.copies() == bodies(2)
    changed = {**fields, "key": "key3"}
    assert "not that of this preview" in (await site.post("resend-all", changed)).text


@pytest.mark.parametrize(
    ("filter_", "numbers"),
    [
        ({"key": "key3"}, [3]),
        ({"tags": "B"}, [1, 3, 5]),
        ({"text": "number 4"}, [4]),
        ({"tags": "A", "text": "number"}, [0, 2, 4]),
        ({"begin": "1h"}, [0, 1, 2, 3, 4, 5]),
    ],
)
async def test_list_export_and_resend_have_the_same_letters(
    site: Site, filter_: dict[str, str], numbers: list[int]
) -> None:
    query = f"?{urlencode({'order': 'oldest', **filter_})}"
    data = await site.json(query)
    assert [letter["row"]["body"] for letter in data["letters"]] == bodies(*numbers)
    export = await call(site.console, f"/dlq/{site.group}{query}&export=jsonl")
    assert [json.loads(line)["body"] for line in export.text.splitlines()] == bodies(*numbers)
    job = await site.run(**filter_)
    assert site.copies() == bodies(*numbers)
    assert (job.state, job.total("sent")) == (State.DONE, len(numbers))


async def test_letters_go_to_their_original_topic_if_its_name_is_typed(site: Site) -> None:
    before = len(site.broker.messages("Orders"))
    preview, fields = await site.preview(to="origin")
    assert f"Orders ({LETTER_COUNT})" in preview.text
    del fields["typed"]
    assert "the name that was typed" in unescape((await site.post("resend-all", fields)).text)
    await site.run(to="origin")
    sent = [message.body.decode() for message in site.broker.messages("Orders")[before:]]
    assert sent == bodies(*range(LETTER_COUNT))


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"rate": "0"}, "a number from 1 to 1000"),
        ({"rate": "1001"}, "a number from 1 to 1000"),
        ({"to": "elsewhere"}, "allowed are group, origin"),
        ({"begin": "yesterday"}, "allowed: 2026-11-21T14:00"),
        ({"spans": "xx"}, "cursor of an earlier answer"),
        ({"key": "no such key"}, "none matches"),
    ],
)
async def test_a_wrong_form_is_refused(site: Site, form: dict[str, str], problem: str) -> None:
    answer, _ = await site.preview(**form)
    assert answer.status in (400, 409)
    assert problem in unescape(answer.text)


async def test_a_preview_counts_a_part_and_then_shows_the_largest_number(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.console.actions.dead_letters.COUNTED_MAX", 0)
    preview, _ = await site.preview(key="key3")
    assert f"Resend up to {LETTER_COUNT} dead letters" in preview.text
    assert f"at most {LETTER_COUNT}" in preview.text
    await site.run(key="key3")
    assert site.copies() == bodies(3)
    monkeypatch.setattr("reput.console.actions.dead_letters.LETTERS_MAX", LETTER_COUNT - 1)
    refused, _ = await site.preview()
    assert refused.status == 413
    assert "narrow it by time" in refused.text


# --- users --------------------------------------------------------------------------------------


async def test_only_operators_who_see_the_group_may(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await site.run(key="key1")
    stop = f"jobs/{job.id}/stop"
    page = f"/dlq/{site.group}/jobs/{job.id}"
    for user, status, seen in (
        (User("rob", Right.READ), 403, 200),
        (User("eve", Right.ADMIN, groups=("other-*",)), 404, 404),
        (User("olga", Right.OPERATE), 200, 200),
    ):
        monkeypatch.setattr(gate, "LOCAL_USER", user)
        assert (await site.post("resend-all", {})).status == status
        assert (await site.post(stop, {})).status == status
        assert (await call(site.console, page)).status == seen
    site.parts.may_operate = False
    site.console = Console(site.parts)
    assert (await site.post("resend-all", {})).status == 404
    assert (await site.post(stop, {})).status == 404
    assert "resend-all" not in (await call(site.console, f"/dlq/{site.group}")).text


async def test_topics_that_the_user_does_not_see_get_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(site.broker.messages("Orders"))
    monkeypatch.setattr(gate, "LOCAL_USER", User("olga", Right.OPERATE, topics=("Bills*",)))
    preview, _ = await site.preview(to="origin")
    assert "Orders" not in preview.text
    job = await site.run(to="origin")
    assert (job.state, job.total("failed")) == (State.PARTLY, LETTER_COUNT)
    assert job.problems[0].place == "broker-a 0 0"
    assert "is of a topic that olga does not see" in job.problems[0].reason
    assert len(site.broker.messages("Orders")) == before


# --- jobs ---------------------------------------------------------------------------------------


class Gate:
    """Sends that a test lets through, one at a time."""

    def __init__(self) -> None:
        self.waiting = asyncio.Semaphore(0)
        self.open = asyncio.Semaphore(0)

    async def sleep(self, duration_s: float, stop: asyncio.Event) -> None:
        """Wait as the pace of a job does."""
        self.waiting.release()
        opened = asyncio.ensure_future(self.open.acquire())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([opened, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
            stopped.cancel()


async def test_a_job_is_stopped_between_two_letters_and_started_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Gate()
    monkeypatch.setattr(site.jobs, "_sleep", pace.sleep)
    job = await site.begin(rate="1")
    for _ in range(2):
        await asyncio.wait_for(pace.waiting.acquire(), WAIT_S)
        pace.open.release()
    await asyncio.wait_for(pace.waiting.acquire(), WAIT_S)  # before the fourth letter
    data = (await site.json(f"/jobs/{job.id}"))["job"]
    assert (data["state"], data["sent"], data["not_looked_at"]) == ("running", 3, 3)
    assert ">Stop</button>" in (await call(site.console, f"/dlq/{site.group}/jobs/{job.id}")).text
    # A second job of the group is refused meanwhile.
    refused, _ = await site.preview()
    assert refused.status == 409
    assert f"job {job.id} of {site.group} is running" in refused.text
    stopped = await site.post(f"jobs/{job.id}/stop", {})
    assert "ends after the letter that is being sent" in stopped.text
    async with asyncio.timeout(WAIT_S):
        await site.jobs.wait(job)
    assert (job.state, job.reason) == (State.STOPPED, "stopped by local")
    assert "had ended before" in (await site.post(f"jobs/{job.id}/stop", {})).text
    end = next(entry for entry in site.parts.audit.newest() if entry.action.endswith(": end"))
    assert end.outcome == "partly"
    assert end.detail.endswith("3 sent, 0 sent before, 0 failed, offsets 3 to 5 not looked at")
    monkeypatch.setattr(site.jobs, "_sleep", site.sleep)
    again = await site.run()
    assert (again.total("sent"), again.total("skipped")) == (3, 3)
    assert site.copies() == bodies(*range(LETTER_COUNT))


async def test_the_end_of_the_console_ends_its_jobs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Gate()
    monkeypatch.setattr(site.jobs, "_sleep", pace.sleep)
    job = await site.begin()
    await asyncio.wait_for(pace.waiting.acquire(), WAIT_S)
    await site.jobs.close()
    assert (job.state, job.reason) == (State.STOPPED, "the console was stopped")
    assert [(queue.sent, queue.next) for queue in job.queues] == [(1, 1)]
    assert site.parts.audit.newest()[0].action == "resend all dead letters: end"
    site.start()
    assert (await call(site.console, f"/dlq/{site.group}/jobs/{job.id}")).status == 404
    await site.run()
    assert site.copies() == bodies(*range(LETTER_COUNT))


async def test_jobs_of_other_groups_are_bounded_and_old_ones_forgotten(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resending, "KEPT_MAX", 1)
    first, second, third = [await site.run(key=f"key{number}") for number in range(3)]
    assert [job.id for job in site.jobs.of_group(site.group)] == [third.id, second.id]
    assert site.jobs.get(site.group, first.id) is None
    assert site.jobs.get("other", third.id) is None
    monkeypatch.setattr(resending, "RUNNING_MAX", 0)
    refused, _ = await site.preview()
    assert refused.status == 409
    assert "0 jobs are running" in refused.text


async def test_letters_are_paced(site: Site) -> None:
    await site.run(rate="2")
    assert site.slept == [0.5] * (LETTER_COUNT - 1)


async def test_sections_of_the_page_follow_the_job(site: Site) -> None:
    """Also those of a job that has ended before the stream began."""
    job = await site.run()
    names = {"group": site.group, "job": job.id}
    view = View(names, Query({}), gate.LOCAL_USER, site.parts, 0)
    response = live_rows.response(Renderer(), ROUTES["/dlq/{group}/jobs/{job}"], view)
    assert isinstance(response, StreamingResponse)
    chunks = cast(AsyncGenerator[str, None], response.body_iterator)
    async with contextlib.aclosing(chunks):
        assert (await anext(chunks)).startswith("retry: ")
        elements = json.loads((await anext(chunks)).removeprefix("data: "))
    assert list(elements) == ["job-state", "job-order", "job-queues", "job-problems"]
    assert f"{LETTER_COUNT} letters sent" in elements["job-state"]
    assert job.version > LETTER_COUNT


# --- brokers that hang or refuse ----------------------------------------------------------------


Sent = Callable[[Message, Callable[[], Awaitable[SendResult]]], Awaitable[SendResult]]


def with_sends(monkeypatch: pytest.MonkeyPatch, sent: Sent) -> None:
    """Let a function of a test decide what a send does."""

    class ScriptedProducer:
        def __init__(self, group: str, **options: Any) -> None:
            self._producer = Producer(group, **options)

        async def __aenter__(self) -> Self:
            await self._producer.start()
            return self

        async def __aexit__(self, *_: object) -> None:
            await self._producer.close()

        async def send(self, message: Message) -> SendResult:
            return await sent(message, lambda: self._producer.send(message))

    monkeypatch.setattr(producer, "Producer", ScriptedProducer)


async def test_a_broker_that_hangs_pauses_the_job_and_then_fails_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sent(message: Message, send: Callable[[], Awaitable[SendResult]]) -> SendResult:
        if message.body == b"number 3":
            raise RequestTimedOut("127.0.0.1:1", 310, 3_000)
        return await send()

    with_sends(monkeypatch, sent)
    job = await site.run(rate="1000")
    assert job.state is State.FAILED
    assert "asked 5 times; letter broker-a 0 3 may have been sent" in job.reason
    assert [pause for pause in site.slept if pause >= 1] == list(resending.PAUSES_S)
    assert (job.total("sent"), job.unread) == (3, 3)
    page = await call(site.console, f"/dlq/{site.group}/jobs/{job.id}")
    assert "may have been sent" in page.text
    monkeypatch.undo()
    again = await site.run()
    assert (again.total("sent"), again.total("skipped")) == (3, 3)
    assert site.copies() == bodies(*range(LETTER_COUNT))


async def test_a_broker_that_answers_again_continues_the_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [
        RequestTimedOut("127.0.0.1:1", 310, 3_000),
        BrokerError(ResponseCode.SYSTEM_BUSY, "full"),
    ]
    states: list[tuple[State, str]] = []

    async def sent(message: Message, send: Callable[[], Awaitable[SendResult]]) -> SendResult:
        if message.body == b"number 1" and failures:
            raise failures.pop()
        return await send()

    async def sleep(duration_s: float, stop: asyncio.Event) -> None:
        (job,) = site.jobs.of_group(site.group)
        states.append((job.state, job.reason))

    with_sends(monkeypatch, sent)
    monkeypatch.setattr(site.jobs, "_sleep", sleep)
    job = await site.run()
    assert job.state is State.DONE
    waiting = [reason for state, reason in states if state is State.WAITING]
    assert len(waiting) == 2
    assert "full; asked again in 1 s" in waiting[0]
    assert site.copies() == bodies(*range(LETTER_COUNT))


async def test_refused_letters_fail_and_many_of_them_end_the_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(message: Message, send: Callable[[], Awaitable[SendResult]]) -> SendResult:
        if message.body in (b"number 1", b"number 4", b"number 5"):
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "too long")
        return await send()

    with_sends(monkeypatch, refused)
    job = await site.run()
    assert (job.state, job.total("sent"), job.total("failed")) == (State.PARTLY, 3, 3)
    assert [problem.place for problem in job.problems] == [
        *("broker-a 0 1", "broker-a 0 4", "broker-a 0 5"),
    ]
    assert "too long" in job.problems[0].reason
    monkeypatch.setattr(resending, "REFUSED_MAX", 2)
    again = await site.run()
    assert (again.state, again.unread) == (State.FAILED, 1)
    assert "2 consecutive letters were refused" in again.reason


async def test_a_receipt_that_is_not_kept_ends_the_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(receipt: ResendReceipt) -> None:
        raise ReceiptNotKept("the disk is full")

    monkeypatch.setattr(site.parts.resends, "add", full)
    job = await site.run()
    assert job.state is State.FAILED
    assert "letter broker-a 0 0 was sent, but its receipt is not kept" in job.reason
    assert site.copies() == bodies(0)


async def test_letters_that_expire_after_the_start_are_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reput.console.scan import ScanPart
    from reput.console.search import Missing, Question, Span
    from reput.console.sources.live_messages import LiveMessages

    pace = Gate()
    monkeypatch.setattr(site.jobs, "_sleep", pace.sleep)
    monkeypatch.setattr(resending, "_PART", 2)
    read = LiveMessages.read

    async def expired(self: LiveMessages, part: Span, question: Question) -> ScanPart:
        if part.low < 4:
            return await read(self, part, question)
        missing = Missing("broker-a queue 0", f"offsets {part.low} to {part.high - 1} have expired")
        return ScanPart(part, (), (missing,))

    job = await site.begin()
    monkeypatch.setattr(LiveMessages, "read", expired)
    for _ in range(LETTER_COUNT):
        pace.open.release()
    async with asyncio.timeout(WAIT_S):
        await site.jobs.wait(job)
    assert (job.state, job.total("sent"), job.total("gaps")) == (State.PARTLY, 4, 1)
    assert job.problems[0].reason == "offsets 4 to 5 have expired"
