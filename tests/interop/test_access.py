"""Our broker with access control 2.0 beside an official one: replies, and mqadmin with both."""

import asyncio
import json
import os
import re
from collections.abc import Iterator

import pytest

import access_script
from interop import secured_cluster as secured
from interop.java_cluster import JavaClient, JavaCluster
from interop.mqadmin.sides import masked, our_cluster
from interop.secured_cluster import ADMIN, ADMIN_SECRET, TOPIC
from interop.test_plain_broker import GROUPS, REFUSED, TOPICS, ask
from reput.client import Admin

pytestmark = [pytest.mark.interop, pytest.mark.rotating, pytest.mark.xdist_group("test_access")]

VERSION = "5.5.0"


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


def test_equal_replies(addresses: tuple[str, str, str, str]) -> None:
    """Replies that were recorded for unit tests are those of the official broker."""
    _, ours, _, official = addresses
    theirs = asyncio.run(access_script.replies(official))
    if os.environ.get("REPUT_SCRIPTS") == "write":
        access_script.write(theirs)
    assert access_script.as_json(theirs) == json.loads(access_script.RECORDED.read_text())
    for mine, their in zip(asyncio.run(access_script.replies(ours)), theirs, strict=True):
        assert mine == their


def test_refusals_are_those_of_java(addresses: tuple[str, str, str, str]) -> None:
    """A user with some permissions is refused the same requests as with access control 1.0."""
    for namesrv in addresses[0], addresses[2]:
        asyncio.run(prepare(namesrv))
    for name, (sender, request) in REFUSED.items():
        ours, theirs = [
            asyncio.run(ask(broker, sender, request)) for broker in (addresses[1], addresses[3])
        ]
        assert ours[0] == 16, name
        if name == "settings":
            assert theirs[0] == 0  # every user of 5.5.0 changes settings
        else:
            assert ours == theirs, name


async def prepare(namesrv: str) -> None:
    async with Admin(client=secured.config_of(namesrv, ADMIN, ADMIN_SECRET)) as admin:
        await secured.create_user(admin, TOPICS, GROUPS)
        await admin.create_topic(TOPIC)


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
