"""Pages and changes over HTTP, with a broker: numbers, confirmations, roles."""

import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from asgi import Answer, call
from console_forms import confirmation, hidden_fields
from reput.client import Message, PushConsumer
from reput.client.admin import Admin
from reput.client.core import requests
from reput.client.producer import Producer
from reput.clock import SystemClock
from reput.console.access import ROLES, Proxy
from reput.console.app import CHANGES, ROUTES, Console
from reput.console.audit import AuditLog
from reput.console.cluster import WatchedCluster
from reput.console.parts import ConsoleParts
from reput.console.settings import StorePlace
from reput.console.sources.folder import StoreFolders
from reput.console.users import make
from reput.console.verifying import Verifications
from reput.format.bodies import MessageQueue
from reput.format.codes import PERM_WRITE, RequestCode
from reput.format.headers import SendBackHeader
from reput.testing import LocalBroker

FORM = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8080"}
JSON = {"accept": "application/json"}
SENT, READ = 40, 10


class Site:
    """A console of a broker, without users, with changes allowed."""

    def __init__(self, console: Console, parts: ConsoleParts, admin: Admin) -> None:
        self.console = console
        self.parts = parts
        self.admin = admin

    async def data(self, url: str) -> Any:
        answer = await call(self.console, url, headers=JSON)
        assert answer.status == 200, answer.data
        return answer.data

    async def page(self, url: str) -> str:
        answer = await call(self.console, url)
        assert answer.status == 200
        return html.unescape(answer.text)

    async def post(self, url: str, fields: dict[str, str]) -> Answer:
        token = hidden_fields((await call(self.console, "/audit")).text)["csrf"]
        form = {**fields, "csrf": token}
        return await call(self.console, url, method="POST", headers=FORM, form=form)


def confirmation_of(answer: Answer) -> dict[str, str]:
    """Return the fields of the form that confirms a preview."""
    assert "Nothing has been changed yet" in answer.text
    return confirmation(answer.text)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with LocalBroker(topics={"Orders": 2, "Other": 1}) as mq:
        async with Producer("P", namesrv=mq.namesrv_addr) as producer:
            for number in range(SENT):
                await producer.send(
                    Message("Orders", b"%d" % number), queue=MessageQueue("Orders", "broker-a", 0)
                )
        async with Admin(mq.namesrv_addr) as admin:
            await admin.create_group("billing")
            queue = MessageQueue("Orders", "broker-a", 0)
            await admin.update_consumer_offset("billing", queue, READ)
            cluster = WatchedCluster.of(admin, SystemClock())
            parts = ConsoleParts(
                SystemClock(),
                mq.namesrv_addr,
                cluster,
                AuditLog(tmp_path / "audit.jsonl"),
                may_operate=True,
            )
            await cluster.collector.round()
            await cluster.collector.refresh()
            cluster.note_viewed(["Orders", "Other"], ["billing"])
            await cluster.collector.view_step()
            yield Site(Console(parts), parts, admin)


async def test_pages_show_the_numbers_of_the_cluster(site: Site) -> None:
    topics = {row["name"]: row for row in (await site.data("/topics"))["rows"]}
    assert topics["Orders"]["messages"] == SENT
    assert topics["Orders"]["lag"] == SENT - READ
    assert topics["Other"]["messages"] == 0
    assert topics["Other"]["lag"] is None  # no group reads it
    assert topics["Orders"]["rate"] == {"unknown": "not asked for yet"}
    (group,) = (await site.data("/groups"))["rows"]
    assert (group["name"], group["lag"], group["members"]) == ("billing", SENT - READ, 0)
    (broker,) = (await site.data("/brokers"))["rows"]
    assert (broker["name"], broker["state"]) == ("broker-a", "ok")
    queues = (await site.data("/topics/Orders"))["queues"]
    assert [queue["max_offset"] for queue in queues] == [SENT, 0]
    progress = (await site.data("/groups/billing"))["queues"]
    assert [(row["queue_id"], row["lag"]) for row in progress if row["lag"]] == [(0, SENT - READ)]
    settings = (await site.data("/brokers/broker-a"))["settings"]
    assert settings["brokerName"] == "broker-a"
    overview = await site.data("/")
    assert [row["name"] for row in overview["lagging"]] == ["billing"]
    text = "Group billing is not consumed: it has a lag, and no members"
    assert overview["problems"] == [{"text": text, "names": ["groups", "billing"]}]


async def test_a_page_is_rendered_for_each_path(site: Site) -> None:
    names = {"topic": "Orders", "group": "billing", "broker": "broker-a"}
    for path in ROUTES:
        if not re.fullmatch(r"/|/(topics|groups|brokers|audit)(/\{\w+\})?", path):
            continue  # needs other parts, which have their own tests
        text = await site.page(path.format_map(names))
        assert "<h1>" in text
        assert text.count("<h1") == 1


async def test_a_list_is_filtered_sorted_and_cut_by_its_url(site: Site) -> None:
    async def names(query: str) -> list[str]:
        return [row["name"] for row in (await site.data(f"/topics?{query}"))["rows"]]

    assert await names("") == ["Orders", "Other"]
    assert await names("sort=-name") == ["Other", "Orders"]
    assert await names("sort=-messages") == ["Orders", "Other"]
    assert await names("sort=lag") == ["Orders", "Other"]  # an absent value is last
    assert await names("sort=-lag") == ["Orders", "Other"]
    assert await names("q=ord") == ["Orders"]
    assert "SCHEDULE_TOPIC_XXXX" in await names("kind=system")
    everything = await site.data("/topics?kind=all&size=500")
    assert everything["paging"]["count"] == len(everything["rows"]) > 2
    assert everything["counts"]["all"] == len(everything["rows"])


async def test_what_does_not_exist_is_404(site: Site) -> None:
    for url in ("/topics/Nothing", "/groups/nothing", "/brokers/nothing", "/brokers/broker-a?id=7"):
        answer = await call(site.console, url)
        assert answer.status == 404, url


async def test_a_group_is_reset_after_a_preview(site: Site) -> None:
    fields = {"topic": "Orders", "to": "end"}
    preview = await site.post("/groups/billing/reset", fields)
    assert preview.status == 200
    assert f"{SENT - READ} skipped" in preview.text
    queue = MessageQueue("Orders", "broker-a", 0)
    assert await site.admin.consumer_offset("billing", queue) == READ
    assert site.parts.audit.newest() == []

    receipt = await site.post("/groups/billing/reset", confirmation_of(preview))
    assert receipt.status == 200, receipt.text
    assert "2 queues of Orders were reset" in receipt.text
    assert await site.admin.consumer_offset("billing", queue) == SENT
    (entry,) = site.parts.audit.newest()
    assert (entry.action, entry.outcome, entry.user) == ("offset.reset", "done", "local")
    assert entry.arguments == {"group": "billing", "topic": "Orders", "to": "end"}

    again = await site.post("/groups/billing/reset", confirmation_of(preview))
    assert again.status == 409
    assert "this preview was confirmed before" in again.text


async def test_a_confirmation_is_refused_when_the_state_has_moved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.console.actions.offsets.TOLERANCE", 5)
    preview = await site.post("/groups/billing/reset", {"topic": "Orders", "to": "begin"})
    queue = MessageQueue("Orders", "broker-a", 0)
    await site.admin.update_consumer_offset("billing", queue, READ + 6)
    refused = await site.post("/groups/billing/reset", confirmation_of(preview))
    assert refused.status == 409
    assert f"the offset of broker-a:0 was {READ} and is {READ + 6}" in refused.text
    assert await site.admin.consumer_offset("billing", queue) == READ + 6
    (entry,) = site.parts.audit.newest()
    assert (entry.action, entry.outcome) == ("offset.reset", "refused")

    confirmed = await site.post("/groups/billing/reset", confirmation_of(refused))
    assert confirmed.status == 200
    assert await site.admin.consumer_offset("billing", queue) == 0


async def test_a_changed_confirmation_is_refused(site: Site) -> None:
    preview = await site.post("/groups/billing/reset", {"topic": "Orders", "to": "end"})
    fields = confirmation_of(preview)
    for change in (
        {"to": "begin"},
        {"shown": "{}"},
        {"token": fields["token"][:-1] + ("0" if fields["token"][-1] != "0" else "1")},
        {"token": ""},
    ):
        refused = await site.post("/groups/billing/reset", {**fields, **change})
        assert refused.status == 409, change
    queue = MessageQueue("Orders", "broker-a", 0)
    assert await site.admin.consumer_offset("billing", queue) == READ


async def test_offsets_are_copied_to_another_group(site: Site) -> None:
    fields = {"topic": "Orders", "to_group": "copy"}
    preview = await site.post("/groups/billing/clone", fields)
    receipt = await site.post("/groups/billing/clone", confirmation_of(preview))
    assert receipt.status == 200, receipt.text
    queue = MessageQueue("Orders", "broker-a", 0)
    assert await site.admin.consumer_offset("copy", queue) == READ


async def test_a_topic_is_created_and_deleted(site: Site) -> None:
    preview = await site.post("/topics", {"name": "Fresh", "queues": "3"})
    receipt = await site.post("/topics", confirmation_of(preview))
    assert "Fresh is on 1 brokers" in receipt.text
    assert len((await site.data("/topics/Fresh"))["queues"]) == 3

    preview = await site.post("/topics/Fresh/delete", {})
    fields = confirmation_of(preview)
    refused = await site.post("/topics/Fresh/delete", {**fields, "typed": "Fres"})
    assert refused.status == 409
    fields = confirmation_of(refused)
    done = await site.post("/topics/Fresh/delete", {**fields, "typed": "Fresh"})
    assert "Fresh is deleted" in done.text
    assert (await call(site.console, "/topics/Fresh")).status == 404


async def test_a_message_is_sent_and_its_body_is_not_in_the_audit_log(site: Site) -> None:
    assert 'action="/topics/Orders/send"' in await site.page("/topics/Orders")
    fields = {
        "body": "café <b>\r\n\tx",
        "tags": "A",
        "keys": "k1 k2",
        "properties": "region=eu\n\nnote=a=b\n",
    }
    preview = await site.post("/topics/Orders/send", fields)
    shown = html.unescape(preview.text)
    assert "1 group read it: billing" in shown
    assert "12 B: café <b>" in shown
    receipt = await site.post("/topics/Orders/send", confirmation_of(preview))
    (offset_id,) = re.findall(r'href="/messages/([0-9A-F]+)"', receipt.text)
    message = await site.data(f"/messages/{offset_id}?topic=Orders")
    assert message["body"]["text"] == "café <b>\n\tx"
    properties = message["properties"]
    assert (properties["TAGS"], properties["KEYS"]) == ("A", "k1 k2")
    assert (properties["region"], properties["note"]) == ("eu", "a=b")
    assert properties["REPUT_SENT_BY"] == "local"
    (entry,) = (await site.data("/audit"))["entries"]
    assert (entry["action"], entry["outcome"]) == ("message.send", "done")
    assert entry["arguments"]["body"].startswith("12 bytes, SHA-256 ")
    assert entry["arguments"]["keys"] == "k1 k2"


async def test_a_member_describes_itself(site: Site) -> None:
    namesrv = site.parts.namesrv
    consumer = PushConsumer("billing", namesrv=namesrv, listener=lambda _messages, _context: None)
    await consumer.subscribe("Orders")
    async with consumer:
        (member,) = (await site.data("/groups/billing"))["members"]
        url = f"/groups/billing/members/{quote(member['client_id'], safe='')}"
        assert url in await site.page("/groups/billing")
        data = await site.data(url)
        assert data["problem"] is None
        assert data["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {(queue["topic"], queue["queue_id"]) for queue in data["queues"]} <= {
            *(("Orders", 0), ("Orders", 1), ("%RETRY%billing", 0))
        }
        assert data["stacks"] is None
        assert "Ask for them" in await site.page(url)
        stacks = (await site.data(f"{url}?stacks=1"))["stacks"]
        assert isinstance(stacks, (str, dict))  # the text, or why there is none
        assert (await call(site.console, "/groups/billing/members/nobody")).status == 404


async def test_writing_to_a_broker_is_switched_off_and_on(site: Site) -> None:
    async def is_writable() -> bool:
        route = await site.admin.topic_route("Orders")
        return all(queue.perm & PERM_WRITE for queue in route.data.queue_datas)

    url = "/brokers/broker-a/writing"
    assert f'action="{url}"' in await site.page("/brokers/broker-a")
    preview = await site.post(url, {"writing": "off"})
    assert "Producers cannot send anywhere then" in preview.text
    assert (await site.post(url, confirmation_of(preview))).status == 409  # the name was not typed
    fields = {**confirmation_of(preview), "typed": "broker-a"}
    assert await is_writable()
    done = await site.post(url, {**confirmation_of(await site.post(url, {"writing": "off"})),
                                 "typed": fields["typed"]})  # fmt: skip
    assert "broker-a is no longer writable" in done.text
    assert not await is_writable()
    preview = await site.post(url, {"writing": "on"})
    assert "broker-a is writable again" in (await site.post(url, confirmation_of(preview))).text
    assert await is_writable()
    assert (await site.post("/brokers/nobody/writing", {"writing": "on"})).status == 404


@pytest.mark.parametrize(
    ("url", "fields", "text"),
    [
        ("/topics/Orders/send", {"body": ""}, "body: 0 bytes, allowed are 1 to"),
        ("/topics/Orders/send", {"body": "x", "properties": "a"}, "allowed are lines name=value"),
        ("/topics/Orders/send", {"body": "a\0"}, "allowed is text without control characters"),
        ("/topics/SCHEDULE_TOPIC_XXXX/send", {"body": "x"}, "brokers do not keep for themselves"),
        ("/brokers/broker-a/writing", {"writing": "maybe"}, "allowed are off, on"),
        ("/topics", {"name": "a b"}, "a b"),
        ("/topics", {"name": "Fine", "queues": "0"}, "allowed are 1 to 1024"),
        ("/topics", {"name": "Fine", "cluster": "x"}, "cluster='x': allowed are DefaultCluster"),
        ("/groups/billing/reset", {"topic": "", "to": "end"}, "topic='': allowed is a topic"),
        ("/groups/billing/reset", {"topic": "Orders", "to": "x"}, "allowed are end, begin, time"),
        (
            "/groups/billing/reset",
            {"topic": "Orders", "to": "time", "time": "soon"},
            "allowed is a time as",
        ),
        ("/groups/billing/clone", {"topic": "Orders", "to_group": "billing"}, "another group"),
    ],
)
async def test_a_wrong_field_of_a_change_is_named(
    site: Site, url: str, fields: dict[str, str], text: str
) -> None:
    answer = await site.post(url, fields)
    assert answer.status == 400
    assert text in html.unescape(answer.text)


async def test_a_read_only_console_has_no_changes(site: Site) -> None:
    site.parts.may_operate = False
    site.console = Console(site.parts)
    for path in CHANGES:
        url = path.format(topic="Orders", group="billing", broker="broker-a", job="1")
        answer = await site.post(url, {"topic": "Orders", "to": "end"})
        assert answer.status == 404, path
    for url in ("/topics", "/topics/Orders", "/groups/billing", "/brokers/broker-a"):
        text = await site.page(url)
        forms = re.findall(r'<form [^>]*action="([^"]+)"', text)
        assert {form for form in forms if form not in ("/theme", "/topics")} == set(), url
        assert "read-only" in text


async def test_roles_allow_their_paths_and_no_others(site: Site) -> None:
    accounts = {role: make(role, role, "correct horse") for role in ROLES}
    site.parts.accounts = accounts
    console = Console(site.parts)
    names = {"topic": "Orders", "group": "billing", "broker": "broker-a"}
    for role in ROLES:
        token = hidden_fields((await call(console, "/login")).text)["csrf"]
        form = {"name": role, "password": "correct horse", "csrf": token, "to": "/"}
        entered = await call(console, "/login", method="POST", headers=FORM, form=form)
        cookie = {"cookie": entered.header("set-cookie").partition(";")[0]}
        for path, route in ROUTES.items():
            if not re.fullmatch(r"/|/(topics|groups|brokers|audit)(/\{\w+\})?", path):
                continue
            answer = await call(console, path.format_map(names), headers=cookie)
            assert answer.status == (200 if ROLES[role] >= route.right else 403), (role, path)
        csrf = hidden_fields((await call(console, "/topics", headers=cookie)).text)["csrf"]
        for path, change in CHANGES.items():
            if ROLES[role] >= change.right:
                continue
            answer = await call(
                console,
                path.format_map({**names, "store": "s", "job": "1"}),
                method="POST",
                headers={**FORM, **cookie},
                form={"csrf": csrf},
            )
            assert answer.status == 403, (role, path)


async def test_names_outside_of_a_users_patterns_do_not_exist(site: Site) -> None:
    limited = make("rob", "operator", "correct horse", topics=("Other",), groups=("x*",))
    site.parts.accounts = {"rob": limited}
    console = Console(site.parts)
    token = hidden_fields((await call(console, "/login")).text)["csrf"]
    form = {"name": "rob", "password": "correct horse", "csrf": token, "to": "/"}
    entered = await call(console, "/login", method="POST", headers=FORM, form=form)
    cookie = {"cookie": entered.header("set-cookie").partition(";")[0], **JSON}
    topics = await call(console, "/topics?kind=all", headers=cookie)
    assert [row["name"] for row in topics.data["rows"]] == ["Other"]
    assert (await call(console, "/groups?kind=all", headers=cookie)).data["rows"] == []
    assert (await call(console, "/topics/Orders", headers=cookie)).status == 404
    assert (await call(console, "/groups/billing", headers=cookie)).status == 404
    assert "billing" not in (await call(console, "/", headers=cookie)).text


QUERIES = (
    *("", "?kind=all", "?format=json", "?stacks=1&format=json", "?export=jsonl", "?export=csv"),
    *("?topic=GoodT&key=key", "?topic=GoodT&key=key&format=json", "?topic=GoodT&live=1"),
)


async def test_no_page_names_what_a_user_does_not_see(tmp_path: Path) -> None:
    """The group that the user sees reads a secret topic, and a secret group reads its topic.

    Rows that follow the cluster (``live=1``) are parts of the same pages.
    """
    shown = {"topic": "GoodT", "group": "GoodG", "broker": "broker-a", "store": "s", "job": "1"}
    root = tmp_path / "store"
    async with (
        LocalBroker(topics={"GoodT": 1, "SecretT": 1}, folder=root) as mq,
        Admin(mq.namesrv_addr) as admin,
    ):
        member = PushConsumer("GoodG", namesrv=mq.namesrv_addr, listener=lambda *_: None)
        await admin.create_group("SecretG")
        async with Producer("P", namesrv=mq.namesrv_addr) as producer:
            for topic in ("GoodT", "SecretT"):
                sent = await producer.send(Message(topic, b"body", keys=["key"]))
                shown.setdefault("id", sent.message_id)
                queue = MessageQueue(topic, "broker-a", 0)
                for group in ("GoodG", "SecretG"):
                    await admin.update_consumer_offset(group, queue, 0)
                await _send_to_dead_letters(admin, mq, topic, "GoodG")
                await member.subscribe(topic)
        async with member:
            shown["client"] = (await _members(admin, "GoodG"))[0]
            clock = SystemClock()
            cluster = WatchedCluster.of(admin, clock)
            await cluster.collector.round()
            await cluster.collector.refresh()
            limited = make("rob", "reader", None, topics=("Good*", "%DLQ%Good*"), groups=("Good*",))
            parts = ConsoleParts(
                *(clock, mq.namesrv_addr, cluster, AuditLog(tmp_path / "audit.jsonl")),
                {"rob": limited},
                proxy=Proxy(frozenset({"127.0.0.1"})),
                folders=StoreFolders({"s": StorePlace("s", str(root), may_be_live=True)}, clock),
                verifications=Verifications(clock),
            )
            parts.verifications.start(parts.folders.check("s"))
            await parts.verifications.wait()
            console = Console(parts)
            walked = set()
            for pattern in ROUTES:
                path = "/".join(
                    quote(shown[part.strip("{}")], safe="") if part.startswith("{") else part
                    for part in pattern.split("/")
                )
                for query in QUERIES:
                    if "live" in query and "messages" not in pattern:
                        continue  # it does not end
                    answer = await call(console, path + query, headers={"x-forwarded-user": "rob"})
                    assert "Secret" not in answer.text, (path, query)
                    walked.add((pattern, answer.status))
            assert {pattern for pattern, status in walked if status == 200} == {*ROUTES} - {
                "/audit",
                "/dlq/{group}/jobs/{job}",
            }
            await parts.verifications.close()


async def _send_to_dead_letters(admin: Admin, mq: LocalBroker, topic: str, group: str) -> None:
    for message in mq.messages(topic):
        header = SendBackHeader(
            offset=message.physical_offset,
            group=group,
            delay_level=-1,
            origin_msg_id=message.message_id,
            origin_topic=topic,
            unit_mode=False,
            max_reconsume_times=16,
        )
        await admin.calls.ask(
            mq.broker_addr, requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        )


async def _members(admin: Admin, group: str) -> list[str]:
    connection = await admin.consumer_connection(group)
    assert connection is not None
    return [member.client_id for member in connection.connection_set]
