"""Pages of messages, dead letters and stores, over HTTP: against a broker and golden stores."""

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

import golden
from asgi import Answer, call
from console_forms import confirmation, hidden_fields
from reput.client import Message, Producer
from reput.client.admin import Admin
from reput.client.config import ClientConfig
from reput.client.core import requests
from reput.clock import ManualClock, SystemClock
from reput.console import scan
from reput.console.access import Right
from reput.console.app import Console
from reput.console.audit import AuditLog
from reput.console.cluster import WatchedCluster
from reput.console.parts import ConsoleParts
from reput.console.resends import Resends
from reput.console.settings import StorePlace
from reput.console.sources.folder import StoreFolders
from reput.console.verifying import Verifications
from reput.format import headers
from reput.format.codes import RequestCode
from reput.format.names import TIMER_TOPIC
from reput.testing import LocalBroker

HOSTILE = "<script>alert(1)</script>"
GROUP = "Billing"
ORDER_COUNT = 60
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A broker with 60 orders, of which number 3 is hostile, and three dead letters of a group."""

    async def fill() -> None:
        async with (
            Producer("writers", namesrv=mq.namesrv_addr) as producer,
            Admin(mq.namesrv_addr) as admin,
        ):
            await admin.create_group(GROUP)
            for number in range(ORDER_COUNT):
                body = json.dumps({"order": number, "big": 2**60}).encode()
                await producer.send(
                    Message(
                        "Orders",
                        HOSTILE.encode() if number == 3 else body,
                        tags=HOSTILE if number == 3 else "Tag",
                        keys=f"key{number}",
                        properties={"note": HOSTILE},
                    )
                )
            for message in mq.messages("Orders")[:3]:
                header = headers.SendBackHeader(
                    offset=message.physical_offset,
                    group=GROUP,
                    delay_level=-1,
                    origin_msg_id=message.message_id,
                    origin_topic="Orders",
                    unit_mode=False,
                    max_reconsume_times=16,
                )
                request = requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
                await admin.calls.ask(mq.broker_addr, request)

    with LocalBroker(topics={"Orders": 2}) as mq:
        asyncio.run(fill())
        yield mq


@pytest.fixture
async def parts(broker: LocalBroker, tmp_path: Path) -> AsyncIterator[ConsoleParts]:
    clock = SystemClock()
    clean = golden.unpack("4.9.7", "clean")
    places = {
        "clean": StorePlace("clean", str(clean)),
        "v5": StorePlace("v5", str(golden.unpack("5.5.0", "v5"))),
        "nothing": StorePlace("nothing", str(tmp_path)),
    }
    async with Admin(broker.namesrv_addr) as admin:
        parts = ConsoleParts(
            clock,
            broker.namesrv_addr,
            WatchedCluster.of(admin, clock),
            AuditLog(tmp_path / "audit.jsonl"),
            may_operate=True,
            folders=StoreFolders(places, clock),
            resends=Resends(tmp_path / "resends.jsonl"),
            verifications=Verifications(clock),
        )
        yield parts
        await parts.verifications.close()


@pytest.fixture
def console(parts: ConsoleParts) -> Console:
    return Console(parts)


def events(answer: Answer) -> list[tuple[str, str]]:
    """Return the names and the HTML of a stream of events."""
    return [
        (name, json.loads(data))
        for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n\n", answer.text)
    ]


def links(answer: Answer, text: str) -> list[str]:
    """Return the targets of links with a text."""
    return [
        unescape(target)
        for target, content in re.findall(r'<a[^>]*href="([^"]*)"[^>]*>([^<]*)</a>', answer.text)
        if content == text
    ]


# --- messages -----------------------------------------------------------------------------------


async def test_a_search_is_html_and_json_with_the_same_rows(console: Console) -> None:
    url = "/messages?topic=Orders&rows=20"
    data = (await call(console, f"{url}&format=json")).data
    html = await call(console, url)
    assert len(data["answer"]["rows"]) == 20
    assert not data["answer"]["complete"]
    for row in data["answer"]["rows"]:
        assert f"/messages/{row['offset_id']}?" in html.text
    assert html.text.count('<tr><td class="time') == 20
    # Two searches: each has its own duration.
    sentence = without_duration(data["answer"]["sentence"])
    assert ", T s." in sentence
    assert sentence in without_duration(unescape(html.text))


def without_duration(text: str) -> str:
    return re.sub(r"\b\d+\.\d s\b", "T s", text)


async def test_continuing_reaches_every_message_once(console: Console) -> None:
    numbers: list[str] = []
    url = "/messages?topic=Orders&rows=25"
    while True:
        answer = (await call(console, f"{url}&format=json")).data["answer"]
        numbers += [row["offset_id"] for row in answer["rows"]]
        html = await call(console, url)
        more = links(html, "Continue the search")
        assert bool(more) == (answer["cursor"] is not None)
        if not more:
            break
        (url,) = more
    assert answer["complete"]
    assert len(set(numbers)) == len(numbers) == ORDER_COUNT


class SlowedClock(ManualClock):
    """A clock of a machine on which every look at it takes a second."""

    def monotonic_ms(self) -> int:
        self.advance(1_000)
        return super().monotonic_ms()


async def test_json_waits_for_the_whole_search_and_a_page_for_a_second(
    console: Console, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One queue at a time: the time of a page begins with the first.
    monkeypatch.setattr(scan, "READS_AT_ONCE", 1)
    url = "/messages?topic=Orders&rows=500"
    parts.clock = SlowedClock()
    answer = (await call(console, f"{url}&format=json")).data["answer"]
    assert answer["complete"]
    assert len(answer["rows"]) == ORDER_COUNT
    assert answer["took_ms"] > 1_000
    page = await call(console, url)
    assert "paused after 1 s" in page.text
    assert "data-search=" in page.text  # a script continues it
    limited = (await call(console, f"{url}&max_seconds=1&format=json")).data["answer"]
    assert limited["pause"] == "1 s"


async def test_an_empty_search_is_a_form(console: Console) -> None:
    answer = await call(console, "/messages")
    assert answer.status == 200
    assert 'name="topic"' in answer.text
    assert (await call(console, "/messages?format=json")).data["answer"] is None


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("topic=Orders&sql=a+%3E", "SQL92"),
        ("topic=Orders&expression=(", "regular expression"),
        ("topic=Orders&begin=yesterday", "allowed: 2026-11-21T14:00"),
        ("topic=Orders&cursor=xx", "cursor of an earlier answer"),
        ("topic=Orders&rows=100000", "1 to 500"),
        ("id=xyz", "an offset id"),
        ("topic=Orders&tag=paid", "unknown parameter 'tag'; known are topic, "),
        ("topik=Orders", "did you mean 'topic'?"),
        ("topic=Orders&max_seconds=9999", "a number from 1 to 600"),
    ],
)
async def test_errors_in_a_search_are_named(console: Console, query: str, problem: str) -> None:
    answer = await call(console, f"/messages?{query}")
    assert answer.status == 400
    assert problem in unescape(answer.text)


async def test_a_topic_that_is_not_there_is_no_empty_result(console: Console) -> None:
    answer = await call(console, "/messages?topic=Nothing")
    assert answer.status == 503
    assert "no route to topic" in answer.text


async def test_hostile_names_and_bodies_are_text(console: Console) -> None:
    page = await call(console, "/messages?topic=Orders&text=script")
    assert HOSTILE not in page.text
    assert "&lt;script&gt;alert(1)" in page.text
    (row,) = (await call(console, "/messages?topic=Orders&text=script&format=json")).data["answer"][
        "rows"
    ]
    assert (row["body"], row["tags"]) == (HOSTILE, HOSTILE)
    message = await call(console, f"/messages/{row['offset_id']}")
    assert message.status == 200
    assert HOSTILE not in message.text
    assert message.text.count("&lt;script&gt;alert(1)") >= 3  # tag, body, property
    query = urlencode({"topic": "Orders", "text": f'"{HOSTILE}'})
    assert HOSTILE not in (await call(console, f"/messages?{query}")).text


async def test_a_stream_has_the_rows_and_the_end(console: Console) -> None:
    answer = await call(console, "/messages?topic=Orders&text=order&rows=500&live=1")
    assert answer.header("content-type").startswith("text/event-stream")
    assert answer.header("x-accel-buffering") == "no"
    assert "content-security-policy" in dict(answer.headers)
    names = [name for name, _ in events(answer)]
    assert names[-1] == "end"
    assert names.count("row") == ORDER_COUNT - 1
    state = [html for name, html in events(answer) if name == "state"][-1]
    assert "Complete: 1 broker, 2 queues" in state
    assert (await call(console, "/messages?live=1")).status == 400


async def test_a_stream_that_cannot_begin_says_why(console: Console) -> None:
    answer = await call(console, "/messages?topic=NoSuchTopic&text=order&live=1")
    assert answer.text.count("event: state") == 1
    assert "NoSuchTopic" in answer.text
    assert answer.text.endswith("event: end\ndata: {}\n\n")


async def test_searches_of_a_user_are_bounded(console: Console, parts: ConsoleParts) -> None:
    with parts.search_slots.take("local"), parts.search_slots.take("local"):
        answer = await call(console, "/messages?topic=Orders")
    assert answer.status == 503
    assert "2 searches of this user are running" in answer.text


async def test_a_topic_that_the_user_may_not_see_is_not_there(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reput.console import gate
    from reput.console.access import User

    rows = (await call(console, "/messages?topic=Orders&rows=1&format=json")).data["answer"]["rows"]
    user = User("rob", Right.READ, topics=("Other*",))
    monkeypatch.setattr(gate, "LOCAL_USER", user)
    assert (await call(console, "/messages?topic=Orders")).status == 404
    assert (await call(console, f"/messages/{rows[0]['offset_id']}")).status == 404
    by_id = await call(console, f"/messages?id={rows[0]['offset_id']}&format=json")
    assert by_id.data["answer"]["rows"] == []


async def test_the_trace_of_a_message(console: Console, broker: LocalBroker) -> None:
    config = ClientConfig(namesrv_addr=broker.namesrv_addr, enable_trace=True)
    async with Producer("tracers", client=config) as producer:
        sent = await producer.send(Message("Orders", b"traced"))
    url = f"/messages/{sent.offset_message_id}"
    async with asyncio.timeout(20):  # until it is in the index
        while not (trace := (await call(console, f"{url}?format=json")).data["trace"]):
            await asyncio.sleep(0.05)
    (event,) = trace
    assert (event["what"], event["group"], event["result"]) == ("sent", "tracers", "success")
    page = await call(console, url)
    assert "tracers" in page.text


# --- a message ----------------------------------------------------------------------------------


async def test_a_message_has_its_place_its_body_and_its_groups(console: Console) -> None:
    url = "/messages?topic=Orders&key=key7&format=json"
    (row,) = (await call(console, url)).data["answer"]["rows"]
    for query in ("", f"?topic=Orders&broker=broker-a&queue={row['queue_id']}"
                  f"&offset={row['queue_offset']}"):  # fmt: skip
        separator = "&" if query else "?"
        data = (
            await call(console, f"/messages/{row['offset_id']}{query}{separator}format=json")
        ).data
        message = data["message"]
        assert (message["queue_id"], message["queue_offset"]) == (
            row["queue_id"],
            row["queue_offset"],
        )
        assert message["keys"] == ["key7"]
        assert data["properties"]["note"] == HOSTILE
        assert data["body"]["kind"] == "json"
        nodes = {node["name"]: node for node in data["body"]["tree"]["nodes"]}
        assert nodes["big"] == {
            "name": "big",
            "kind": "integer",
            "text": "1152921504606846976",
            "nodes": [],
        }
    html = await call(console, f"/messages/{row['offset_id']}")
    assert "1152921504606846976" in html.text
    unique = await call(console, f"/messages/{row['id']}?topic=Orders&format=json")
    assert unique.data["message"]["offset_id"] == row["offset_id"]


async def test_who_has_consumed_a_message(console: Console, broker: LocalBroker) -> None:
    url = "/messages?topic=Orders&key=key9&format=json"
    (row,) = (await call(console, url)).data["answer"]["rows"]
    async with Admin(broker.namesrv_addr) as admin:
        for queue in (await admin.topic_route("Orders")).subscribe_queues:
            for group, ahead in (("before", 0), ("after", 1)):
                wanted = row["queue_offset"] + ahead
                await admin.update_consumer_offset(group, queue, wanted)
    data = (await call(console, f"/messages/{row['offset_id']}?format=json")).data
    states = {group["group"]: group["state"] for group in data["groups"]}
    assert (states["before"], states["after"]) == ("waits", "consumed")


async def test_a_missing_message_is_reported_with_reasons(console: Console) -> None:
    answer = await call(console, "/messages/7F0000010000000100000000000000FF")
    assert answer.status == 404
    assert "is no broker of this cluster" in answer.text
    assert (await call(console, "/messages/zzz")).status == 400


async def test_a_body_is_a_download(console: Console) -> None:
    (row,) = (await call(console, "/messages?topic=Orders&text=script&format=json")).data["answer"][
        "rows"
    ]
    answer = await call(console, f"/messages/{row['offset_id']}?download=1")
    assert answer.body == HOSTILE.encode()
    assert answer.header("content-type") == "application/octet-stream"
    assert answer.header("content-disposition").startswith("attachment;")
    assert answer.header("x-content-type-options") == "nosniff"


# --- dead letters -------------------------------------------------------------------------------


async def post(console: Console, url: str, form: dict[str, str]) -> Answer:
    """Send a form as a page of the console does."""
    page = await call(console, "/messages")
    fields = {**form, "csrf": hidden_fields(page.text)["csrf"]}
    return await call(console, url, method="POST", form=fields, headers=SAME_ORIGIN)


async def confirmed(console: Console, url: str, form: dict[str, str]) -> tuple[Answer, Answer]:
    """Return the preview of a change and the answer to its confirmation."""
    preview = await post(console, url, form)
    fields = confirmation(preview.text)
    typed = {"typed": GROUP} if f"Type {GROUP}" in preview.text else {}
    answer = await post(console, url, fields | typed)
    return preview, answer


async def test_groups_with_dead_letters(console: Console) -> None:
    data = (await call(console, "/dlq?format=json")).data
    (group,) = data["groups"]
    assert (group["group"], group["count"]) == (GROUP, 3)
    assert f'href="/dlq/{GROUP}"' in (await call(console, "/dlq")).text


async def test_selected_letters_are_sent_again_after_a_preview(
    console: Console, broker: LocalBroker, parts: ConsoleParts
) -> None:
    data = (await call(console, f"/dlq/{GROUP}?format=json")).data
    assert len(data["letters"]) == 3
    assert data["complete"]
    chosen = data["letters"][0]
    url = f"/dlq/{GROUP}/resend"
    retry = f"%RETRY%{GROUP}"
    before = len(broker.messages(retry))
    preview, answer = await confirmed(console, url, {chosen["field"]: "1", "to": "group"})
    assert "Resend 1 dead letters of Billing" in preview.text
    assert chosen["row"]["id"] in preview.text
    assert "Type Billing" not in preview.text
    assert "1 of 1 dead letters of Billing were sent again" in answer.text
    copies = broker.messages(retry)[before:]
    assert [copy.message_id for copy in copies] == [chosen["row"]["id"]]
    row = chosen["row"]
    place = f"{row['broker']} {row['queue_id']} {row['queue_offset']}"
    assert copies[0].properties["REPUT_RESENT"] == place
    # A second click is asked twice, also after a restart.
    parts.resends = Resends(parts.resends.path)
    letters = (await call(console, f"/dlq/{GROUP}?format=json")).data["letters"]
    assert [letter["resent_ms"] is not None for letter in letters] == [True, False, False]
    preview, answer = await confirmed(console, url, {chosen["field"]: "1", "to": "group"})
    assert "1 of these was sent again before" in preview.text
    assert "Type Billing" in preview.text
    assert len(broker.messages(retry)) == before + 2
    actions = [(entry.action, entry.outcome) for entry in parts.audit.newest()]
    assert actions == [("resend dead letters", "done")] * 2


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({}, "0 letters: select 1 to 500"),
        ({"letter 0 0": "1"}, "is no dead letter"),
        ({"letter 0 999999 broker-a": "1"}, "is not there"),
        ({"letter 0 0 broker-x": "1"}, "is not there"),
        ({"letter 0 0 broker-a": "1", "to": "elsewhere"}, "allowed are group, origin"),
    ],
)
async def test_a_resend_of_nothing_is_refused(
    console: Console, form: dict[str, str], problem: str
) -> None:
    answer = await post(console, f"/dlq/{GROUP}/resend", form)
    assert answer.status >= 400
    assert problem in unescape(answer.text)


async def test_a_read_only_console_has_no_resend(parts: ConsoleParts) -> None:
    parts.may_operate = False
    console = Console(parts)
    page = await call(console, f"/dlq/{GROUP}")
    assert 'type="checkbox"' not in page.text
    answer = await post(console, f"/dlq/{GROUP}/resend", {"letter 0 0 broker-a": "1"})
    assert answer.status == 404


async def test_dead_letters_are_exported(console: Console) -> None:
    lines = (await call(console, f"/dlq/{GROUP}?export=jsonl")).text.splitlines()
    letters = [json.loads(line) for line in lines]
    assert [letter["body_encoding"] for letter in letters] == ["text"] * 3
    assert {letter["origin_topic"] for letter in letters} == {"Orders"}
    table = list(
        csv.DictReader(io.StringIO((await call(console, f"/dlq/{GROUP}?export=csv")).text))
    )
    assert [row["body"] for row in table] == [letter["body"] for letter in letters]
    assert (await call(console, f"/dlq/{GROUP}?export=xls")).status == 400


# --- stores -------------------------------------------------------------------------------------


async def test_stores_and_one_that_is_none(console: Console) -> None:
    data = (await call(console, "/stores?format=json")).data
    by_name = {store["name"]: store["info"] for store in data["stores"]}
    expected = golden.manifest("4.9.7", "clean")["log"]
    assert by_name["clean"]["condition"] == "clean"
    assert by_name["clean"]["log"]["start"] == expected.get("min_offset", 0)
    assert "is no store" in by_name["nothing"]["unknown"]
    html = (await call(console, "/stores")).text
    assert "Not known: " in html
    assert 'aria-current="page">Stores' in html


async def test_a_store_has_its_files_queues_and_tables(console: Console) -> None:
    facts = (await call(console, "/s/clean?format=json")).data["facts"]
    assert len(facts["files"]) == facts["log"]["file_count"]
    in_queues = sum(queue["message_count"] for queue in facts["queues"])
    assert in_queues == sum(topic["message_count"] for topic in facts["topics"]) > 0
    html = await call(console, "/s/clean")
    assert html.status == 200
    for queue in facts["queues"]:
        assert queue["topic"] in html.text


async def test_a_store_has_the_progress_of_its_timer(console: Console) -> None:
    manifest = golden.manifest("5.5.0", "v5")
    check = manifest["timerCheckpoint"]
    (queue,) = (queue for queue in manifest["queues"] if queue["topic"] == TIMER_TOPIC)
    timer = (await call(console, "/s/v5?format=json")).data["facts"]["timer"]
    assert timer["delivered_timestamp"] == check["lastReadTimeMs"]
    assert timer["read_offset"] == check["lastTimerQueueOffset"]
    assert timer["max_offset"] == timer["waiting_max"] == queue["maxOffset"]
    html = (await call(console, "/s/v5")).text
    assert f"{queue['maxOffset']} messages" in html
    assert (await call(console, "/s/clean?format=json")).data["facts"]["timer"] is None
    assert "No timer has run on the store." in (await call(console, "/s/clean")).text


@pytest.mark.parametrize("name", ["other", "..", "%2e%2e%2f%2e%2e%2fetc", "/etc", "clean%00"])
@pytest.mark.parametrize("end", ["", "/messages?topic=T", "/messages/7F00"])
async def test_a_store_that_is_not_configured_is_refused_and_in_the_audit_log(
    console: Console, parts: ConsoleParts, name: str, end: str
) -> None:
    answer = await call(console, f"/s/{quote(name, safe='%')}{end}")
    assert answer.status == 404
    assert "root:" not in answer.text
    entries = parts.audit.newest()
    assert [entry.outcome for entry in entries] == ["refused"]


async def test_messages_of_a_store_are_searched_like_those_of_a_cluster(console: Console) -> None:
    facts = (await call(console, "/s/clean?format=json")).data["facts"]
    topic = max(facts["topics"], key=lambda topic: topic["message_count"])["topic"]
    query = urlencode({"topic": topic, "rows": 5})
    data = (await call(console, f"/s/clean/messages?{query}&format=json")).data
    rows = data["answer"]["rows"]
    assert len(rows) == 5
    html = await call(console, f"/s/clean/messages?{query}")
    assert f"/s/clean/messages/{rows[0]['offset_id']}?" in html.text
    message = await call(console, f"/s/clean/messages/{rows[0]['offset_id']}?format=json")
    assert message.data["message"]["queue_offset"] == rows[0]["queue_offset"]
    assert (await call(console, f"/s/clean/messages/{rows[0]['offset_id']}")).status == 200


async def test_the_page_of_an_id_of_a_batch_has_each_message_inside(console: Console) -> None:
    topic = "GoldenBatch-bcq"
    java = [entry for entry in golden.messages("5.5.0", "v5") if entry["topic"] == topic][1]
    for id_ in (java["uniqKey"], java["offsetMsgId"]):
        data = (await call(console, f"/s/v5/messages/{id_}?topic={topic}&format=json")).data
        assert data["message"]["queue_offset"] == 4
        assert [copy["queue_offset"] for copy in data["copies"]] == [5, 6, 7]
    place = f"topic={topic}&queue=0&offset=6&broker="
    data = (await call(console, f"/s/v5/messages/{java['offsetMsgId']}?{place}&format=json")).data
    assert (data["message"]["queue_offset"], data["copies"]) == (6, [])


async def test_a_verification_is_confirmed_and_its_findings_are_shown(
    parts: ConsoleParts, tmp_path: Path
) -> None:
    """A read-only console verifies: it changes nothing."""
    path = golden.copy_store("4.9.7", "clean", tmp_path / "damaged")
    log_file = golden.log_files(path)[0]
    with log_file.open("r+b") as file:
        file.seek(4)
        file.write(b"\0\0\0\0")
    parts.folders = StoreFolders({"damaged": StorePlace("damaged", str(path))}, parts.clock)
    parts.may_operate = False
    console = Console(parts)
    assert (await call(console, "/s/damaged?format=json")).data["verification"] is None
    preview, answer = await confirmed(console, "/s/damaged/verify", {})
    assert "reads every byte of the log" in preview.text
    assert "is being verified" in answer.text
    assert parts.verifications.running == "damaged"
    await parts.verifications.wait()
    check = (await call(console, "/s/damaged?format=json")).data["verification"]
    assert check["problem"] is None
    assert check["report"]["verdict"] == "damage"
    html = (await call(console, "/s/damaged")).text
    hole = check["report"]["holes"][0]
    assert hole["physical_offset"] == int(log_file.name)
    assert 'class="damage"' in html
    assert "log_hole" in html
