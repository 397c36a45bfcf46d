"""Access control 1.0 of our broker: refusals, admin requests and files as of the official 4.9.7."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from interop import secured_cluster as secured
from interop.clusters import until
from interop.conftest import _or_skip
from interop.java_cluster import ClientError, JavaClient, JavaCluster, JavaMessage
from interop.java_oracle import wants_all_versions
from interop.mqadmin.sides import masked
from interop.secured_cluster import ADMIN, ADMIN_SECRET, OTHER_TOPIC, TOPIC, USER, USER_SECRET
from reput.client import (
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    PopConsumer,
    TransactionProducer,
    TransactionState,
)
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from reput.format.signing import Credentials, Signer
from reput.remoting.client import RemotingClient
from reput.secret import Secret
from reput_cluster import ReputCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.rotating,
    pytest.mark.xdist_group("test_plain_broker"),
]

FILE = "conf/plain_acl.yml"
GROUPS = {"allowed-group": "SUB", "pub-group": "PUB"}
TOPICS = {
    TOPIC: "PUB|SUB", "Denied": "DENY", "OnlyPub": "PUB", "OnlySub": "SUB",
    "Java-4-5-2": "PUB|SUB", "Java-4-9-7": "PUB|SUB",
}  # fmt: skip
PLAIN_ACL = secured.plain_acl(TOPICS, GROUPS)
TIMEOUT_MS = 60_000


class Sides(NamedTuple):
    java: JavaClient
    """mqadmin; its tools.yml has the admin's keys."""
    ours: ReputCluster
    official: JavaCluster

    @property
    def both(self) -> tuple[ReputCluster | JavaCluster, ...]:
        return self.ours, self.official

    def mqadmin(self, *arguments: str) -> tuple[str, str]:
        """Return what mqadmin prints with our broker, and with the official one."""
        printed = []
        for side in self.both:
            words = [word.replace("BROKER", side.address) for word in arguments]
            text = masked(self.java.mqadmin(*words, namesrv=side.namesrv))
            text = re.sub(r"PlainAccessConfig@[0-9a-f]+", "ACCOUNT", text)
            printed.append(text.replace(str(side.folder), "HOME"))
        return printed[0], printed[1]


def tools(java: JavaClient, work: Path, access_key: str, secret_key: str) -> None:
    text = f"accessKey: {access_key}\nsecretKey: {secret_key}\n" if access_key else ""
    (work / "conf/tools.yml").write_text(text)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@pytest.fixture(scope="module")
def sides(work: Path) -> Iterator[Sides]:
    home = work / "ours"
    (home / "conf").mkdir(parents=True)
    (home / FILE).write_text(PLAIN_ACL)
    settings = {"aclEnable": True, "rocketmqHome": str(home), "messageDelayLevel": "1s 1s 1s 1s"}
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(_or_skip(lambda: JavaClient("4.9.7", work / "java")))
        official = stack.enter_context(
            JavaCluster("4.9.7", work / "official", {"aclEnable": True}, files={FILE: PLAIN_ACL})
        )
        ours = stack.enter_context(ReputCluster(home, settings))
        tools(java, work / "java", ADMIN, ADMIN_SECRET)
        yield Sides(java, ours, official)


SIGNERS = {
    name: Signer(Credentials(name, Secret(secret)))
    for name, secret in ((ADMIN, ADMIN_SECRET), (USER, USER_SECRET), ("a-stranger", USER_SECRET))
}
SEND = {"producerGroup": "p", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "",
        "reconsumeTimes": "0", "unitMode": "false", "batch": "false"}  # fmt: skip
PULL = {"queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}  # fmt: skip
QUERY = {"key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9999999999999"}
CONSUMER = (
    b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"%b","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
    b'"subString":"*","subVersion":1,"tagsSet":[],"topic":"%b"}],"unitMode":false}],'
    b'"producerDataSet":[]}'
)
REFUSED: dict[str, tuple[str, Command]] = {
    "unsigned": ("", Command(Code.SEND_MESSAGE, ext_fields={**SEND, "topic": TOPIC}, body=b"x")),
    "no fields": ("", Command(Code.GET_ALL_TOPIC_CONFIG)),
    "unknown": ("a-stranger", Command(Code.GET_ALL_TOPIC_CONFIG, ext_fields={})),
    "send": (USER, Command(Code.SEND_MESSAGE, ext_fields={**SEND, "topic": OTHER_TOPIC})),
    "send denied": (USER, Command(Code.SEND_MESSAGE, ext_fields={**SEND, "topic": "Denied"})),
    "send only sub": (USER, Command(Code.SEND_MESSAGE, ext_fields={**SEND, "topic": "OnlySub"})),
    "send retry": (
        USER,
        Command(
            Code.SEND_MESSAGE,
            ext_fields={**SEND, "producerGroup": "g", "group": "g", "topic": "%RETRY%g"},
        ),
    ),
    "pull": (
        USER,
        Command(
            Code.PULL_MESSAGE,
            ext_fields={**PULL, "topic": "OnlyPub", "consumerGroup": "allowed-group"},
        ),
    ),
    "pull by group": (
        USER,
        Command(
            Code.PULL_MESSAGE, ext_fields={**PULL, "topic": "OnlySub", "consumerGroup": "pub-group"}
        ),
    ),
    "query": (USER, Command(Code.QUERY_MESSAGE, ext_fields={**QUERY, "topic": "OnlyPub"})),
    "heartbeat": (
        USER, Command(Code.HEART_BEAT, ext_fields={}, body=CONSUMER % (b"g", TOPIC.encode()))
    ),
    "heartbeat topic": (
        USER, Command(Code.HEART_BEAT, ext_fields={}, body=CONSUMER % (b"allowed-group", b"Denied"))
    ),
    "unregister": (
        USER, Command(Code.UNREGISTER_CLIENT, ext_fields={"clientID": "c", "consumerGroup": "g"})
    ),
    "members": (USER, Command(Code.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": "g"})),
    "commit": (
        USER,
        Command(
            Code.UPDATE_CONSUMER_OFFSET,
            ext_fields={"consumerGroup": "g", "topic": TOPIC, "queueId": "0", "commitOffset": "0"},
        ),
    ),
    "create topic": (
        USER,
        Command(
            Code.UPDATE_AND_CREATE_TOPIC,
            ext_fields={"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1",
                        "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
                        "order": "false"},
        ),
    ),
    "delete topic": (USER, Command(Code.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": TOPIC})),
    "settings": (USER, Command(Code.UPDATE_BROKER_CONFIG, ext_fields={}, body=b"a=b")),
    "delete group": (
        USER, Command(Code.DELETE_SUBSCRIPTIONGROUP, ext_fields={"groupName": "allowed-group"})
    ),
}  # fmt: skip
"""Requests that 4.9.7 refuses, and their senders."""


async def ask(address: str, name: str, request: Command) -> tuple[int, str]:
    """Return code and text of a reply, without Java's place."""
    signed = SIGNERS[name].sign(request) if name else request
    async with RemotingClient() as client:
        reply = await client.invoke(address, signed, TIMEOUT_MS)
    return reply.code, re.sub(r", org\.apache[\w.$]+\([^()]*\)$", "", reply.remark or "")


@pytest.mark.parametrize("case", REFUSED)
async def test_refusals_are_those_of_java(sides: Sides, case: str) -> None:
    ours, theirs = [await ask(side.address, *REFUSED[case]) for side in sides.both]
    assert theirs[0] == 1
    assert "AclException: " in theirs[1]
    assert ours == theirs


async def test_a_wrong_signature_is_refused_as_by_java(sides: Sides) -> None:
    signed = SIGNERS[USER].sign(Command(Code.GET_ALL_TOPIC_CONFIG, ext_fields={}))
    assert signed.ext_fields is not None
    for signature in ("", "x", signed.ext_fields["Signature"].swapcase()):
        wrong = Command(signed.code, ext_fields={**signed.ext_fields, "Signature": signature})
        ours, theirs = [await ask(side.address, "", wrong) for side in sides.both]
        assert ours == theirs
        assert "Check signature failed" in ours[1]


@pytest.mark.parametrize(
    "request_",
    [
        Command(Code.SEND_MESSAGE, ext_fields={**SEND, "topic": TOPIC}, body=b"x"),
        Command(Code.SEND_MESSAGE, ext_fields={**SEND, "topic": "OnlyPub"}, body=b"x"),
        Command(Code.SEND_MESSAGE, ext_fields={**SEND, "topic": "RMQ_SYS_TRACE_TOPIC"}, body=b"x"),
        Command(Code.GET_ALL_TOPIC_CONFIG, ext_fields={}),
        Command(Code.HEART_BEAT, ext_fields={}, body=CONSUMER % (b"allowed-group", TOPIC.encode())),
    ],
    ids=["send", "only pub", "trace", "topics", "heartbeat"],
)
async def test_allowed_requests_are_served_by_both(sides: Sides, request_: Command) -> None:
    for side in sides.both:
        code, text = await ask(side.address, USER, request_)
        assert code == 0, text


# --- mqadmin --------------------------------------------------------------------


def accounts(side: ReputCluster | JavaCluster) -> dict[str, Any]:
    """Return accounts, white addresses and version counter of a side's file."""
    content = yaml.safe_load((side.folder / FILE).read_text())
    return {
        "accounts": {account["accessKey"]: account for account in content["accounts"]},
        "white": content["globalWhiteRemoteAddresses"],
        "counter": content["dataVersion"][0]["counter"],
    }


COMMANDS = [
    "updateAclConfig -b BROKER -a tool-user -s tool-secret -t A=PUB,B=PUB|SUB -g g=SUB -i SUB",
    "updateAclConfig -b BROKER -a tool-user -s 12345678901 -w 10.0.3.{7,9} -m true -t C=DENY",
    "updateAclConfig -c DefaultCluster -a next-user -s next-secret",
    "updateAclConfig -b BROKER -a some-user -s user/secret+2 -g allowed-group=SUB,pub-group=PUB",
    "updateGlobalWhiteAddr -b BROKER -g 10.0.3.7,10.0.4.*",
    "deleteAclConfig -b BROKER -a next-user",
    "deleteAclConfig -c DefaultCluster -a tool-user",
]
FAILING = [
    "updateAclConfig -b BROKER -a tool-user -s tool-secret -t A=PUP",
    "updateAclConfig -b BROKER -a tool-user -s tool-secret -g A",
    "deleteAclConfig -b BROKER -a no-such-user",
    "updateGlobalWhiteAddr -b BROKER -g 10.0.3.7 -p /no/such/file.yml",
]


def test_mqadmin_changes_accounts_as_in_java(sides: Sides) -> None:
    for command in COMMANDS:
        ours, theirs = sides.mqadmin(*command.split())
        assert ours == theirs
        assert "success" in ours, ours
        assert accounts(sides.ours) == accounts(sides.official), command
    for command in FAILING:
        ours, theirs = sides.mqadmin(*command.split())
        assert ours == theirs
        assert "AclClient" not in ours
        assert re.search(r"CODE: (209|210|211)", ours), ours
    ours, theirs = sides.mqadmin("clusterAclConfigVersion", "-c", "DefaultCluster")
    wide = re.compile(r" +|TIME|\d{4}-.*")
    assert wide.sub(" ", ours) == wide.sub(" ", theirs)
    assert f"HOME/{FILE}" in ours


def test_secrets_are_never_shown(sides: Sides) -> None:
    ours, theirs = sides.mqadmin("getAclConfig", "-b", "BROKER")
    assert ADMIN_SECRET in theirs  # 4.9.7 shows them to all
    assert "CODE: 3" in ours
    assert ADMIN_SECRET not in ours
    short = ("updateAclConfig", "-b", "BROKER", "-a", "tool-user", "-s", "brief")
    ours, theirs = sides.mqadmin(*short)
    assert ours.replace("***", "brief") == theirs
    assert "brief" not in ours
    assert ADMIN_SECRET not in sides.ours.log()


def test_a_normal_account_changes_nothing(sides: Sides, work: Path) -> None:
    before = (sides.ours.folder / FILE).read_bytes()
    tools(sides.java, work / "java", USER, USER_SECRET)
    try:
        for command in (*COMMANDS, "clusterAclConfigVersion -c DefaultCluster"):
            arguments = [word.replace("BROKER", sides.ours.address) for word in command.split()]
            printed = sides.java.mqadmin(*arguments, namesrv=sides.ours.namesrv)
            assert "Need admin permission for request code=5" in printed, printed
    finally:
        tools(sides.java, work / "java", ADMIN, ADMIN_SECRET)
    assert (sides.ours.folder / FILE).read_bytes() == before


# --- clients --------------------------------------------------------------------

CLIENTS = ("4.5.2", "4.9.7") if wants_all_versions() else ("4.9.7",)


@pytest.mark.parametrize("version", CLIENTS)
def test_java_clients_sign_what_we_verify(sides: Sides, version: str, tmp_path: Path) -> None:
    """All with an account for one topic and group: sends, retries, queries, trace."""
    namesrv, client = sides.ours.namesrv, tmp_path / "client"
    topic = f"Java-{version.replace('.', '-')}"
    creation = ("updateTopic", "-b", sides.ours.address, "-t", topic, "-r", "2", "-w", "2")
    assert "success" in sides.java.mqadmin(*creation, namesrv=namesrv)
    traced = {**signing_with(USER, USER_SECRET), "reput.trace": "true"}
    group = "allowed-group"
    with (
        JavaClient(version, client, properties=traced) as java,
        java.push_consumer(namesrv, group, topic, laters=1) as consumer,
        java.producer(namesrv) as producer,
    ):
        key = f"key-of-{version}"
        (sent,) = producer.send([JavaMessage(topic, b"one", keys=key, tags="tag")])
        producer.send([JavaMessage(topic, b"batch %d" % i) for i in range(2)], how="batch")
        producer.send([JavaMessage(topic, b"oneway")], how="oneway")
        bodies = {b"one", b"batch 0", b"batch 1", b"oneway"}
        received = consumer.take(8)  # each is sent back once
        assert {message.body for message in received} == bodies
        assert sum(message.reconsume_times for message in received) == 4
        with java.pull_consumer(namesrv, group) as puller:
            until(lambda: bool(puller.query(topic, key)))
            assert [message.body for message in puller.query(topic, key)] == [b"one"]
            assert puller.view(topic, sent.msg_id).body == b"one"
        with pytest.raises(ClientError, match=r"code 1\): Send \[3\] times"):
            producer.send([JavaMessage(OTHER_TOPIC, b"x")])
    until((sides.ours.store / "consumequeue/RMQ_SYS_TRACE_TOPIC").exists)


async def test_an_account_sends_in_transactions_and_pops(sides: Sides) -> None:
    client = secured.config_of(sides.ours.namesrv, USER, USER_SECRET)
    creation = ("updateTopic", "-b", sides.ours.address, "-t", "Java-4-9-7", "-r", "2", "-w", "2")
    await asyncio.to_thread(sides.java.mqadmin, *creation, namesrv=sides.ours.namesrv)
    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with (
        TransactionProducer(
            "tx", check=lambda _: TransactionState.COMMIT, client=client
        ) as producer,
        PopConsumer("allowed-group", client=client, config=first) as consumer,
    ):
        await consumer.subscribe("Java-4-9-7")
        await producer.send_in_transaction(
            Message("Java-4-9-7", b"committed"), lambda *_: TransactionState.COMMIT
        )
        bodies: list[bytes] = []
        async with asyncio.timeout(60):
            while b"committed" not in bodies:
                messages = await consumer.pop()
                bodies += [message.body for message in messages]
                if messages:
                    await consumer.ack(*messages)


def signing_with(access_key: str, secret_key: str) -> dict[str, str]:
    return {"reput.accessKey": access_key, "reput.secretKey": secret_key}
