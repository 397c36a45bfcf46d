"""Our broker with access control 2.0 beside an official one: replies, and mqadmin with both."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from interop import secured_cluster as secured
from interop.java_cluster import JavaClient, JavaCluster
from interop.mqadmin.sides import masked, our_cluster
from interop.secured_cluster import ADMIN, ADMIN_SECRET
from reput.format.command import Command
from reput.format.signing import Credentials, Signer
from reput.remoting.client import RemotingClient
from reput.secret import Secret

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("test_access")]

VERSION = "5.5.0"
TIMEOUT_MS = 10_000
NO_REMARK = (None, "not set any response code")
"""Remarks of a success: Java leaves that of the empty reply."""

Asked = tuple[str, int, dict[str, str], Any]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str, str]]:
    """Run both clusters with the same settings; return name server and broker of each."""
    folder = tmp_path_factory.mktemp("access")
    settings = secured.SETTINGS[VERSION]
    with (
        JavaCluster(VERSION, folder / "java", settings) as official,
        our_cluster(folder / "ours", settings) as (namesrv, broker, _),
    ):
        yield namesrv, broker, official.namesrv, official.address


def entry(resource: str, *actions: str, decision: str = "Allow", ips: tuple[str, ...] = ()) -> Any:
    return {
        "resource": resource, "actions": actions, "sourceIps": ips, "decision": decision
    }  # fmt: skip


def rules(subject: str, *entries: Any, kind: str = "Custom") -> Any:
    return {"subject": subject, "policies": [{"policyType": kind, "entries": entries}]}


ANN = {"username": "ann"}
OF_ANN = {"subject": "User:ann"}
QUEUE = {"topic": "none", "queueId": "0"}
BAD_RULES: tuple[list[Any], ...] = (
    [entry("Topic:a", "Any")],
    [entry("Topic:a")],
    [entry("Topic:a", "Pub", ips=("x.y",))],
    [entry("Topic:a", "Pub", ips=("300.1.1.1",))],
    [entry("Topic:a", "Pub", ips=("",))],
    [],
)
SCRIPT: tuple[Asked, ...] = (
    # users
    ("admin", 3001, ANN, {"username": "zz", "password": "ann-pw", "userType": "Normal"}),
    ("admin", 3001, ANN, {"password": "ann-pw"}),
    ("admin", 3001, {"username": "ben"}, {"password": "ben-pw"}),
    ("admin", 3001, {"username": "cid"}, {}),
    ("admin", 3001, {}, {"password": "x"}),
    ("admin", 3001, {"username": " "}, {"password": "x"}),
    ("admin", 3001, {"username": "dan"}, {"password": "x", "userStatus": "disable"}),
    ("admin", 3002, {"username": "none"}, {"password": "x"}),
    ("admin", 3002, {}, {"password": "x"}),
    ("admin", 3002, {"username": "dan"}, {"password": "y"}),
    ("admin", 3002, {"username": "dan"}, {}),
    ("admin", 3003, {"username": "none"}, None),
    ("admin", 3003, {}, None),
    *(("admin", 3004, {"username": name}, None) for name in ("ann", "dan", "none", "")),
    *(("admin", 3005, {"filter": text}, None) for text in ("", "an", "none")),
    # rules
    ("admin", 3009, OF_ANN, None),
    ("admin", 3006, OF_ANN, rules("User:ann", entry("Topic:a", "Pub"))),
    (
        "admin", 3006, OF_ANN,
        rules(
            "User:ann",
            entry("Topic:b*", "pub", "SUB", decision="deny", ips=("10.0.0.0/8", "1.2.3.4")),
            entry("Group:*", "All"), entry("cluster:C", "List"),
        ),
    ),
    ("admin", 3007, OF_ANN,
     rules("User:ann", entry("Topic:a", "Sub"), entry("Namespace:n", "Get"))),
    ("admin", 3007, OF_ANN, rules("User:ann", entry("Topic:d", "Sub"), kind="Default")),
    ("admin", 3009, OF_ANN, None),
    *(("admin", 3010, {"subjectFilter": text}, None) for text in ("", "nn", "none")),
    *(("admin", 3010, {"resourceFilter": text}, None) for text in ("b", "none")),
    ("admin", 3007, OF_ANN, rules("User:none", entry("Topic:a", "Pub"))),
    *(("admin", 3007, OF_ANN, rules("User:ann", *entries)) for entries in BAD_RULES),
    *(("admin", code, {"subject": "User:none"}, None) for code in (3008, 3009)),
    *(("admin", code, {}, None) for code in (3008, 3009)),
    # who may
    *(
        (name, code, fields, None)
        for name in ("nobody", "wrong", "unknown")
        for code, fields in ((3004, ANN), (26, {}), (30, QUEUE), (31_337, {"a": "b"}))
    ),
    ("ben", 3001, {"username": "eve"}, {"password": "x"}),
    ("ben", 202, {"topic": "none"}, None),
    ("admin", 3006, {"subject": "User:ben"}, rules(
        "User:ben", entry("Cluster:*", "All"), entry("Topic:no*", "Get"),
        entry("Topic:none", "Get", decision="Deny"), entry("Topic:n*", "Get"),
    )),
    ("ben", 202, {"topic": "none"}, None),
    ("ben", 202, {"topic": "never"}, None),
    ("ben", 3001, {"username": "eve"}, {"password": "x", "userType": "Super"}),
    ("ben", 3002, {"username": "dan"}, {"userType": "Super"}),
    ("ben", 3002, {"username": ADMIN}, {"password": "x"}),
    ("ben", 3003, {"username": ADMIN}, None),
    ("admin", 3008, {"subject": "User:ben"}, None),
    ("admin", 3008, {"subject": "User:ben"}, None),
    ("ben", 3004, ANN, None),
    ("admin", 3002, {"username": "ben"}, {"userStatus": "disable"}),
    ("ben", 202, {"topic": "none"}, None),
    *(("admin", 3003, {"username": name}, None) for name in ("ann", "ben", "dan")),
    ("admin", 3009, OF_ANN, None),
)  # fmt: skip
"""Sender, code, fields and body of requests, in order."""

PASSWORDS = {
    "admin": (ADMIN, ADMIN_SECRET), "ben": ("ben", "ben-pw"), "wrong": (ADMIN, "wrong"),
    "unknown": ("unknown", "wrong"),
}  # fmt: skip


async def replies(address: str) -> list[tuple[Asked, int, str | None, Any]]:
    """Send the requests; return the replies."""
    clients: dict[str, RemotingClient] = {"nobody": RemotingClient()}
    for who, (name, password) in PASSWORDS.items():
        clients[who] = RemotingClient(signer=Signer(Credentials(name, Secret(password))))
    results = []
    for asked in SCRIPT:
        who, code, fields, body = asked
        data = b"" if body is None else json.dumps(body).encode()
        request = Command(code, ext_fields=dict(fields), body=data)
        reply = await clients[who].invoke(address, request, TIMEOUT_MS)
        remark = None if reply.remark in NO_REMARK else reply.remark
        content = json.loads(reply.body) if reply.body and code >= 3000 else None
        results.append((asked, reply.code, remark, content))
    for client in clients.values():
        await client.close()
    return results


def test_equal_replies(addresses: tuple[str, str, str, str]) -> None:
    _, ours, _, official = addresses
    for mine, theirs in zip(
        asyncio.run(replies(ours)), asyncio.run(replies(official)), strict=True
    ):
        assert mine == theirs


COMMANDS = (
    ("createUser", "-b", "BROKER", "-u", "ann", "-p", "ann-pw", "-t", "Normal"),
    ("createUser", "-c", "DefaultCluster", "-u", "bob", "-p", "bob-pw"),
    ("createUser", "-b", "BROKER", "-u", "ann", "-p", "ann-pw"),
    ("updateUser", "-b", "BROKER", "-u", "bob", "-s", "disable"),
    ("updateUser", "-b", "BROKER", "-u", "none", "-p", "x"),
    ("getUser", "-b", "BROKER", "-u", "bob"),
    ("getUser", "-b", "BROKER", "-u", "none"),
    ("listUser", "-b", "BROKER"),
    ("listUser", "-b", "BROKER", "-f", "bo"),
    ("copyUser", "-f", "BROKER", "-t", "BROKER", "-u", "ann,bob"),
    ("createAcl", "-b", "BROKER", "-s", "User:ann", "-r", "Topic:Allowed,Group:g*",
     "-a", "Pub,Sub", "-d", "Allow"),
    ("createAcl", "-b", "BROKER", "-s", "User:ann", "-r", "Cluster:*", "-a", "Get",
     "-i", "127.0.0.1,10.0.0.0/8", "-d", "Allow"),
    ("createAcl", "-b", "BROKER", "-s", "User:none", "-r", "Topic:T", "-a", "Pub", "-d", "Allow"),
    ("updateAcl", "-b", "BROKER", "-s", "User:ann", "-r", "Group:g*", "-a", "Sub", "-d", "Deny"),
    ("getAcl", "-b", "BROKER", "-s", "User:ann"),
    ("listAcl", "-b", "BROKER", "-s", "ann", "-r", "Topic"),
    ("copyAcl", "-f", "BROKER", "-t", "BROKER", "-s", "User:ann"),
    ("deleteAcl", "-b", "BROKER", "-s", "User:ann", "-r", "Group:g*"),
    ("getAcl", "-b", "BROKER", "-s", "User:ann"),
    ("updateTopic", "-b", "BROKER", "-t", "Allowed", "-r", "1", "-w", "1"),
    ("deleteUser", "-b", "BROKER", "-u", "bob"),
    ("listUser", "-b", "BROKER"),
)  # fmt: skip
"""Commands of the super user, in order."""
OF_ANN_COMMANDS = (
    ("sendMessage", "-t", "Allowed", "-p", "body"),
    ("sendMessage", "-t", "Other", "-p", "body"),
    ("updateTopic", "-b", "BROKER", "-t", "Mine", "-r", "1", "-w", "1"),
    ("updateSubGroup", "-b", "BROKER", "-g", "mine"),
    ("deleteTopic", "-c", "DefaultCluster", "-t", "Allowed"),
    ("createUser", "-b", "BROKER", "-u", "eve", "-p", "x"),
)
"""Commands of a user that may send to a topic."""
STRICTER = ("updateSubGroup",)
"""Commands that only ours refuses."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, JavaClient]]:
    """Start the admin tools of the super user, and of ``ann``."""
    folder = tmp_path_factory.mktemp("tools")
    started = {}
    for name, password in ((ADMIN, ADMIN_SECRET), ("ann", "ann-pw")):
        (folder / name / "conf").mkdir(parents=True)
        text = f"accessKey: {name}\nsecretKey: {password}\n"
        (folder / name / "conf" / "tools.yml").write_text(text)
        started[name] = JavaClient(VERSION, folder / name)
    yield started
    for client in started.values():
        client.close()


def test_mqadmin_prints_the_same(
    addresses: tuple[str, str, str, str], tools: dict[str, JavaClient]
) -> None:
    """The tools read their credentials from tools.yml, and sign with RocketMQ's own hook."""
    our_namesrv, ours, their_namesrv, theirs = addresses

    def printed(name: str, words: tuple[str, ...]) -> list[list[str]]:
        texts = []
        for namesrv, broker in ((our_namesrv, ours), (their_namesrv, theirs)):
            arguments = [broker if word == "BROKER" else word for word in words]
            text = masked(tools[name].mqadmin(*arguments, namesrv=namesrv))
            texts.append(sorted(re.sub(r"cost \[\d+\]ms", "", text).splitlines()))
        return texts

    for words in COMMANDS:
        mine, official = printed(ADMIN, words)
        assert mine == official, words
    for words in OF_ANN_COMMANDS:
        mine, official = printed("ann", words)
        if words[0] in STRICTER:
            assert any("CODE: 16" in line for line in mine), words
        else:
            assert mine == official, words
