"""A broker with access control 2.0: refusals, with their codes and texts.

The codes and texts are a Java broker's, 5.5.0, for the same requests.
"""

import asyncio
import base64
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import world
from reput.broker.processors.table import PROCESSORS
from reput.errors import InvalidOption
from reput.format import signing
from reput.format.codes import RequestCode as Code
from reput.format.command import IS_ONEWAY, Command, Serialization
from reput.format.headers import QueueHeader, SendBackHeader, ViewMessageHeader
from reput.remoting.client import RemotingClient
from world import ROOT, ROOT_PASSWORD, Subject, access_settings, messages_in, signer, until

NO_PERMISSION = 16


@pytest_asyncio.fixture
async def subject(tmp_path: Path) -> AsyncIterator[Subject]:
    """A broker with topics ``T`` and ``Other``; the client is the super user's."""
    async with world.broker(tmp_path, access=access_settings(), signer=signer()) as running:
        await running.send("T", b"of T")
        await running.send("Other", b"of Other")
        yield running


class People:
    """Clients of users."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._clients: list[RemotingClient] = []

    def client(self, name: str | None = None, password: str = "") -> RemotingClient:
        own = signer(name, password) if name else None
        self._clients.append(RemotingClient(signer=own))
        return self._clients[-1]

    async def user(self, name: str, *entries: dict[str, Any], **more: str) -> RemotingClient:
        """Make a user with rules; return a client of it."""
        reply = await self.change(
            Code.AUTH_CREATE_USER, {"username": name}, password=f"{name}-pw", **more
        )
        assert reply.code == 0, reply
        if entries:
            assert (await self.rules(name, *entries)).code == 0
        return self.client(name, f"{name}-pw")

    async def rules(self, name: str, *entries: dict[str, Any], kind: str = "Custom") -> Command:
        policies = [{"policyType": kind, "entries": list(entries)}]
        subject = f"User:{name}"
        return await self.change(
            Code.AUTH_CREATE_ACL, {"subject": subject}, subject=subject, policies=policies
        )

    async def change(self, code: int, fields: dict[str, str], **body: Any) -> Command:
        request = Command(code, ext_fields=fields, body=json.dumps(body).encode())
        return await self.ask(request)

    async def ask(self, request: Command, client: RemotingClient | None = None) -> Command:
        used = client or self.subject.client
        return await used.invoke(self.subject.address, request, world.TIMEOUT_MS)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest_asyncio.fixture
async def people(subject: Subject) -> AsyncIterator[People]:
    everybody = People(subject)
    yield everybody
    await everybody.close()


def entry(
    resource: str, *actions: str, decision: str = "Allow", ips: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        "resource": resource,
        "actions": list(actions),
        "sourceIps": list(ips),
        "decision": decision,
    }


def of_queue(topic: str) -> Command:
    return Command(Code.GET_MAX_OFFSET, ext_fields={"topic": topic, "queueId": "0"})


def denied(name: str, resource: str, reason: str = "no matched policies") -> str:
    return f"User:{name} has no permission to access {resource} from 127.0.0.1, {reason}."


# --- authentication -------------------------------------------------------------------------------


async def test_who_is_not_authenticated(people: People) -> None:
    await people.user("off", userStatus="disable")
    for client, text in (
        (people.client(), "username cannot be null."),
        (people.client("ghost", "x"), "User:ghost is not found."),
        (people.client("off", "off-pw"), "User:off is disabled."),
        (people.client("off", "wrong"), "User:off is disabled."),
        (people.client(ROOT, "wrong"), "check signature failed."),
    ):
        for request in (of_queue("T"), Command(Code.GET_BROKER_CONFIG), Command(31337)):
            reply = await people.ask(request, client)
            assert (reply.code, reply.remark) == (NO_PERMISSION, text)


async def test_a_signature_of_something_else(people: People) -> None:
    right = signer().sign(of_queue("T")).ext_fields or {}
    signature = right[signing.SIGNATURE]
    first, *rest = base64.b64decode(signature)
    flipped = base64.b64encode(bytes([first ^ 1, *rest])).decode()
    forged = [
        {signing.SIGNATURE: text}
        for text in (signature[:-2], "", signature.rstrip("="), "ä" * 14, flipped)
    ]
    unsigned = {name: text for name, text in right.items() if name != signing.SIGNATURE}
    client = people.client()
    for fields, body in (
        (unsigned, b""),
        *((right | changes, b"") for changes in forged),
        (right | {"topic": "Other"}, b""),
        (right | {"more": "x"}, b""),
        (right, b"x"),
    ):
        request = Command(Code.GET_MAX_OFFSET, ext_fields=dict(fields), body=body)
        reply = await people.ask(request, client)
        assert (reply.code, reply.remark) == (NO_PERMISSION, "check signature failed."), fields
    assert (await people.ask(Command(Code.GET_MAX_OFFSET, ext_fields=right), client)).code == 0


async def test_both_encodings_of_headers(people: People) -> None:
    for serialization in Serialization:
        request = of_queue("T")
        request.serialization = serialization
        assert (await people.ask(request)).code == 0
        assert (await people.ask(request, people.client(ROOT, "wrong"))).code == NO_PERMISSION


async def test_one_way_requests_get_nothing(people: People) -> None:
    client = people.client()
    request = of_queue("T")
    request.flag = IS_ONEWAY
    await client.send_oneway(people.subject.address, request)
    # The next reply on the connection is that of the next request.
    reply = await people.ask(Command(31337), client)
    assert reply.remark == "username cannot be null."
    assert people.subject.parts.access is not None
    assert people.subject.parts.access.refusals.unauthenticated_count == 2


@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_query_by_unique_key(people: People, *, is_signed: bool) -> None:
    """Clients disagree about whether the mark of such a query is signed; ours leaves it out."""
    fields = {
        "topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1",
        signing.UNIQUE_KEY_QUERY: "true", signing.ACCESS_KEY: ROOT,
    }  # fmt: skip
    signed = {
        name: text for name, text in fields.items() if is_signed or name != signing.UNIQUE_KEY_QUERY
    }
    signature = signer().signature(signing.content(signed, b""))
    fields[signing.SIGNATURE] = signature
    reply = await people.ask(Command(Code.QUERY_MESSAGE, ext_fields=fields), people.client())
    assert reply.remark == "can not find message, maybe time range not correct"


# --- authorization --------------------------------------------------------------------------------


async def test_rules_of_a_user(people: People) -> None:
    subject = people.subject
    alice = await people.user("alice", entry("Topic:T", "Pub", "Sub"), entry("Group:g*", "Sub"))
    own = Subject(subject.broker, alice, [])
    assert (await own.send("T")).code == 0
    assert (await own.pull("T", consumer_group="g1")).code == 0
    for reply, resource in (
        (await own.send("Other"), "Topic:Other"),
        (await own.pull("Other", consumer_group="g1"), "Topic:Other"),
        (await own.pull("T", consumer_group="h"), "Group:h"),
        (await own.ask(Code.GET_BROKER_CONFIG), "Cluster:DefaultCluster"),
        (await own.ask(31337), "Cluster:DefaultCluster"),
        (await own.pull("%RETRY%g2", consumer_group="g1"), "Cluster:DefaultCluster"),
    ):
        assert (reply.code, reply.remark) == (NO_PERMISSION, denied("alice", resource))
    assert (await own.pull("%RETRY%g1", consumer_group="g1")).code != NO_PERMISSION
    light = {"INNER_MULTI_DISPATCH": "%LMQ%a,Other"}
    assert (await own.send("T", properties=light)).remark == denied("alice", "Topic:%LMQ%a")


async def test_a_denial_and_an_address(people: People) -> None:
    bob = await people.user(
        "bob",
        entry("Topic:*", "Sub"),
        entry("Topic:T", "Sub", decision="Deny"),
        entry("Topic:Oth*", "Sub", ips=("10.0.0.0/8",)),
        entry("Topic:Other", "Sub", ips=("192.168.1.1", "10.0.0.0/8")),
    )
    reply = await people.ask(of_queue("T"), bob)
    assert reply.remark == denied("bob", "Topic:T", "the decision is deny")
    assert (await people.ask(of_queue("Other"), bob)).code == 0
    await people.rules("bob", entry("Topic:Other", "Sub", decision="Deny", ips=("127.0.0.0/8",)))
    reply = await people.ask(of_queue("Other"), bob)
    assert reply.remark == denied("bob", "Topic:Other", "the decision is deny")


async def test_records_are_those_of_their_topic(people: People) -> None:
    carl = await people.user("carl", entry("Topic:T", "Sub", "Get"), entry("Group:g", "Sub"))
    own = Subject(people.subject.broker, carl, [])
    reply = await people.subject.pull("Other")
    (record,) = messages_in(reply.body)
    place = record.physical_offset
    back = SendBackHeader(offset=place, group="g", delay_level=0)
    for reply, resource in (
        (await own.ask(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=place)), "Topic:Other"),
        (
            await own.ask(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=place, topic="T")),
            "Topic:Other",
        ),
        (await own.ask(Code.CONSUMER_SEND_MSG_BACK, back), "Topic:Other"),
    ):
        assert (reply.code, reply.remark) == (NO_PERMISSION, denied("carl", resource))
    assert (await own.ask(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=0))).code == 0


async def test_a_user_without_rules_may_nothing(people: People) -> None:
    """Each code of the protocol is refused; none has a body that would be needed to be refused."""
    eve = await people.user("eve")
    for code in PROCESSORS:
        reply = await people.ask(Command(code), eve)
        assert reply.code != 0 or code in (Code.END_TRANSACTION, Code.BATCH_ACK_MESSAGE), code


async def test_a_disabled_user_gets_no_messages_of_a_held_pull(people: People) -> None:
    dora = await people.user("dora", entry("Topic:T", "Sub"), entry("Group:consumers", "Sub"))
    own = Subject(people.subject.broker, dora, [])
    held = asyncio.create_task(own.pull("T", 0, 1, sys_flag=6, suspend_timeout_millis=60_000))
    async with asyncio.timeout(10):
        await until(lambda: len(people.subject.parts.held_pulls))
        await people.change(Code.AUTH_UPDATE_USER, {"username": "dora"}, userStatus="disable")
        await people.subject.send("T", b"secret")
        reply = await held
    assert (reply.code, reply.remark) == (NO_PERMISSION, "User:dora is disabled.")
    assert reply.body == b""


async def test_a_held_pull_ends_when_its_rule_is_taken_away(people: People) -> None:
    finn = await people.user("finn", entry("Topic:T", "Sub"), entry("Group:consumers", "Sub"))
    own = Subject(people.subject.broker, finn, [])
    held = asyncio.create_task(own.pull("T", 0, 1, sys_flag=6, suspend_timeout_millis=60_000))
    async with asyncio.timeout(10):
        await until(lambda: len(people.subject.parts.held_pulls))
        await people.change(Code.AUTH_DELETE_ACL, {"subject": "User:finn", "resource": "Topic:T"})
        reply = await held
    assert (reply.code, reply.remark) == (NO_PERMISSION, denied("finn", "Topic:T"))


async def test_authentication_alone(tmp_path: Path) -> None:
    """Everybody may do everything but change users."""
    access = access_settings(authorization_enabled=False)
    async with world.broker(tmp_path, access=access, signer=signer()) as subject:
        people = People(subject)
        gina = await people.user("gina")
        assert (await Subject(subject.broker, gina, []).send("T")).code == 0
        reply = await people.ask(Command(Code.AUTH_LIST_USER), gina)
        assert reply.code == NO_PERMISSION
        await people.close()


async def test_whitelists(tmp_path: Path) -> None:
    access = access_settings(authentication_whitelist="30", authorization_whitelist="30")
    async with world.broker(tmp_path, access=access) as subject:
        assert (
            await subject.ask(Code.GET_MAX_OFFSET, QueueHeader(topic="T", queue_id=0))
        ).code == 0
        reply = await subject.ask(Code.GET_MIN_OFFSET, QueueHeader(topic="T", queue_id=0))
        assert reply.code == NO_PERMISSION


# --- users and rules ------------------------------------------------------------------------------


async def test_users(people: People) -> None:
    create, update, delete = Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER
    for code, fields, body, expected in (
        (create, {"username": "a"}, {"password": "pw"}, (0, None)),
        (create, {"username": "a"}, {"password": "pw"}, (16, "The user is existed")),
        (create, {"username": "b"}, {}, (16, "password can not be blank")),
        (create, {}, {"password": "pw"}, (29, "The username is blank")),
        (create, {"username": " "}, {"password": "pw"}, (16, "username can not be blank")),
        (update, {"username": "b"}, {"password": "pw"}, (16, "The user is not exist")),
        (update, {"username": "a"}, {"userStatus": "Disable"}, (0, None)),
        (update, {}, {"password": "pw"}, (29, "The username is blank")),
        (delete, {"username": "b"}, {}, (0, None)),
        (delete, {}, {}, (16, "username can not be blank")),
    ):
        reply = await people.change(code, fields, **body)
        assert (reply.code, reply.remark) == expected
    reply = await people.change(Code.AUTH_GET_USER, {"username": "a"})
    assert reply.body == (
        b'{"password":"pw","userStatus":"disable","userType":"Normal","username":"a"}'
    )
    listed = json.loads((await people.change(Code.AUTH_LIST_USER, {"filter": "oo"})).body)
    assert [user["username"] for user in listed] == [ROOT]
    assert (await people.change(Code.AUTH_LIST_USER, {"filter": "zz"})).body == b""
    assert (await people.change(Code.AUTH_GET_USER, {"username": "zz"})).body == b""


async def test_only_super_users_make_super_users_and_see_passwords(people: People) -> None:
    helper = await people.user("helper", entry("Cluster:*", "All"))
    for code, fields, body, expected in (
        (3001, {"username": "s"}, {"password": "x", "userType": "Super"},
         (1, "The super user can only be create by super user")),
        (3002, {"username": "helper"}, {"userType": "Super"},
         (1, "The super user can only be update by super user")),
        (3002, {"username": ROOT}, {"password": "x"},
         (16, "The super user can only be update by super user")),
        (3003, {"username": ROOT}, {}, (16, "The super user can only be update by super user")),
    ):  # fmt: skip
        request = Command(code, ext_fields=fields, body=json.dumps(body).encode())
        reply = await people.ask(request, helper)
        assert (reply.code, reply.remark) == expected
    reply = await people.ask(Command(Code.AUTH_LIST_USER), helper)
    assert {user["password"] for user in json.loads(reply.body)} == {""}


async def test_rules(people: People) -> None:
    await people.user("alice", entry("Topic:a", "Pub"))
    subject = {"subject": "User:alice"}
    for entries, text in (
        ([entry("Topic:a", "Any")], "The actions can not be Any."),
        ([entry("Topic:a")], "The actions is empty."),
        ([entry("Topic:a", "Odd")], "The actions is empty."),
        ([entry("Topic:a", "Pub", decision="odd")], "The decision is null or illegal."),
        ([entry("Topic:a", "Pub", ips=("x.y",))], "The source ip is invalid."),
        ([entry("Topic:a", "Pub", ips=("",))], "The source ip is empty."),
        ([entry("Odd:a", "Pub")], "The resource is null."),
        ([], "The policies is empty."),
    ):
        reply = await people.rules("alice", *entries)
        assert reply.code == NO_PERMISSION
        assert (reply.remark or "").startswith(text)
    reply = await people.rules("zz", entry("Topic:a", "Pub"))
    assert (reply.code, reply.remark) == (16, "The subject of User:zz is not exist.")
    await people.rules(
        "alice", entry("topic:b*", "SUB", "pub", decision="deny", ips=("10.0.0.0/8",))
    )
    await people.rules("alice", entry("Topic:d", "Sub"), kind="Default")
    reply = await people.change(Code.AUTH_GET_ACL, subject)
    assert reply.body == (
        b'{"policies":[{"entries":[{"actions":["Pub"],"decision":"Allow","resource":"Topic:a"},'
        b'{"actions":["Pub","Sub"],"decision":"Deny","resource":"Topic:b*",'
        b'"sourceIps":["10.0.0.0/8"]}],"policyType":"Custom"},{"entries":[{"actions":["Sub"],'
        b'"decision":"Allow","resource":"Topic:d"}],"policyType":"Default"}],'
        b'"subject":"User:alice"}'
    )
    (listed,) = json.loads((await people.change(Code.AUTH_LIST_ACL, {"resourceFilter": "b"})).body)
    assert [rule["resource"] for rule in listed["policies"][0]["entries"]] == ["Topic:b*"]
    assert (await people.change(Code.AUTH_LIST_ACL, {"subjectFilter": "zz"})).body == b""
    for fields, expected in (
        ({"subject": "User:zz"}, (16, "The subject is not exist.")),
        ({}, (16, "The subject is null.")),
        (subject, (0, None)),
        (subject, (16, "The acl is not exist.")),
    ):
        reply = await people.change(Code.AUTH_DELETE_ACL, fields)
        assert (reply.code, reply.remark) == expected
    assert (await people.change(Code.AUTH_GET_ACL, subject)).body == b""


async def test_the_codes_need_authentication(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        reply = await subject.ask(Code.AUTH_LIST_USER)
        assert reply.code == NO_PERMISSION
        assert "initAuthenticationUser" in (reply.remark or "")


# --- files ----------------------------------------------------------------------------------------


async def test_users_and_rules_are_there_after_a_restart(tmp_path: Path) -> None:
    super_signer = signer()
    async with world.broker(tmp_path, access=access_settings(), signer=super_signer) as subject:
        people = People(subject)
        alice = await people.user("alice", entry("Topic:T", "Sub", ips=("127.0.0.1",)))
        # Durable with the reply.
        for name in ("users.json", "acls.json"):
            mode = (tmp_path / "config" / name).stat().st_mode
            assert stat.S_IMODE(mode) == 0o600
            assert "alice" in (tmp_path / "config" / name).read_text()
        await people.change(Code.AUTH_UPDATE_USER, {"username": ROOT}, password="changed")
        await people.close()
    again = access_settings()  # its password is not that of the user any more
    async with world.broker(tmp_path, access=again, signer=super_signer) as subject:
        assert (await subject.ask(Code.AUTH_LIST_USER)).remark == "check signature failed."
        people = People(subject)
        alice = people.client("alice", "alice-pw")
        assert (await people.ask(of_queue("T"), alice)).code == 0
        assert (await people.ask(of_queue("Other"), alice)).code == NO_PERMISSION
        await people.close()


async def test_the_rocksdb_store_of_a_java_broker_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / "config" / "users").mkdir(parents=True)
    (tmp_path / "config" / "users" / "CURRENT").write_text("MANIFEST-000004\n")
    with pytest.raises(InvalidOption, match="copyUser"):
        async with world.broker(tmp_path, access=access_settings()):
            pass


# --- settings over the network --------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    ["authenticationEnabled=false", "authorizationWhitelist=10", "initAuthenticationUser={}",
     "innerClientAuthenticationCredentials={}", "aclEnable=false", "tls.server.mode=disabled"],
)  # fmt: skip
async def test_access_is_not_changed_over_the_network(people: People, line: str) -> None:
    reply = await people.ask(Command(Code.UPDATE_BROKER_CONFIG, body=line.encode()))
    assert reply.code != 0
    assert people.subject.broker.settings.access.authentication_enabled


async def test_settings_have_no_secrets(people: People) -> None:
    reply = await people.ask(Command(Code.GET_BROKER_CONFIG))
    assert b"authenticationEnabled=true" in reply.body
    assert ROOT_PASSWORD.encode() not in reply.body
