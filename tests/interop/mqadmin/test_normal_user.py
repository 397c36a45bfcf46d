"""The unmodified mqadmin of a user without permissions: no command changes our broker.

Both brokers have access control: 1.0 beside the official 4.9.7, 2.0 beside 5.5.0. The tool prints
the same refusal with both, except for the commands of ``STRICTER``, which only ours refuses.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop import secured_cluster as secured
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaCluster
from interop.mqadmin.conftest import TOOLS
from interop.mqadmin.sides import (
    Both,
    Side,
    masked,
    our_cluster,
    secured_settings,
    write_tools_file,
)
from interop.secured_cluster import (
    ADMIN,
    ADMIN_SECRET,
    GROUP,
    OTHER_TOPIC,
    TOPIC,
    USER,
    USER_SECRET,
)
from reput.client import Admin, blocking

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.slow,
]

OTHER_GROUP = "other-group"
ACL = ("-s", f"User:{USER}", "-r", f"Topic:{OTHER_TOPIC}", "-a", "Pub", "-d", "Allow")
MODE = ("-b", "BROKER", "-t", OTHER_TOPIC, "-g", OTHER_GROUP, "-m", "POP", "-q", "1")
CHANGES: dict[str, tuple[str, ...]] = {
    "updateTopic": ("-b", "BROKER", "-t", "New", "-r", "1", "-w", "1"),
    "updateTopicPerm": ("-b", "BROKER", "-t", OTHER_TOPIC, "-p", "4"),
    "updateSubGroup": ("-b", "BROKER", "-g", "new-group"),
    "updateBrokerConfig": ("-b", "BROKER", "-k", "fileReservedTime", "-v", "25"),
    "cloneGroupOffset": ("-s", OTHER_GROUP, "-d", GROUP, "-t", OTHER_TOPIC, "-o", "true"),
    "resetOffsetByTime": ("-g", OTHER_GROUP, "-t", OTHER_TOPIC, "-s", "0"),
    "skipAccumulatedMessage": ("-g", OTHER_GROUP, "-t", OTHER_TOPIC),
    "cleanExpiredCQ": ("-b", "BROKER"),
    "deleteExpiredCommitLog": ("-b", "BROKER"),
    "cleanUnusedTopic": ("-b", "BROKER"),
    "sendMessage": ("-t", OTHER_TOPIC, "-p", "body"),
    "sendMsgStatus": ("-b", "broker-a", "-s", "16", "-c", "1"),
    "checkMsgSendRT": ("-t", OTHER_TOPIC, "-a", "1", "-s", "16"),
    "deleteSubGroup": ("-b", "BROKER", "-g", OTHER_GROUP),
    "deleteTopic": ("-c", "DefaultCluster", "-t", OTHER_TOPIC),
}
"""Commands of both versions that change a broker, and their arguments."""
CHANGES_4: dict[str, tuple[str, ...]] = {
    "updateAclConfig": ("-b", "BROKER", "-a", USER, "-s", USER_SECRET, "-m", "true"),
    "deleteAclConfig": ("-b", "BROKER", "-a", ADMIN),
    "updateGlobalWhiteAddr": ("-b", "BROKER", "-g", "127.0.0.1"),
}
CHANGES_5: dict[str, tuple[str, ...]] = {
    "updateTopicList": ("-b", "BROKER", "-f", "TOPICS"),
    "updateSubGroupList": ("-b", "BROKER", "-f", "GROUPS"),
    "setConsumeMode": MODE,
    "resetMasterFlushOffset": ("-b", "BROKER", "-o", "0"),
    "switchTimerEngine": ("-b", "BROKER", "-e", "F"),
    "updateStaticTopic": ("-b", "broker-a", "-t", "Static", "-qn", "2"),
    "updateColdDataFlowCtrGroupConfig": ("-b", "BROKER", "-g", OTHER_GROUP, "-v", "1024"),
    "removeColdDataFlowCtrGroupConfig": ("-b", "BROKER", "-g", OTHER_GROUP),
    "setCommitLogReadAheadMode": ("-b", "BROKER", "-m", "0"),
    "triggerLiteDispatch": ("-p", OTHER_TOPIC, "-g", OTHER_GROUP),
    "addBroker": ("-c", "BROKER", "-b", "/broker.conf"),
    "removeBroker": ("-c", "BROKER", "-b", "DefaultCluster:broker-b:0"),
    "updateControllerConfig": ("-a", "BROKER", "-k", "key", "-v", "value"),
    "electMaster": ("-a", "BROKER", "-b", "0", "-bn", "broker-a", "-c", "DefaultCluster"),
    "cleanBrokerMetadata": ("-a", "BROKER", "-bn", "broker-a", "-l"),
    "createUser": ("-b", "BROKER", "-u", "eve", "-p", "secret", "-t", "Super"),
    "updateUser": ("-b", "BROKER", "-u", USER, "-t", "Super"),
    "copyUser": ("-f", "BROKER", "-t", "BROKER", "-u", ADMIN),
    "deleteUser": ("-b", "BROKER", "-u", ADMIN),
    "createAcl": ("-b", "BROKER", *ACL),
    "updateAcl": ("-b", "BROKER", *ACL),
    "copyAcl": ("-f", "BROKER", "-t", "BROKER", "-s", f"User:{USER}"),
    "deleteAcl": ("-b", "BROKER", "-s", f"User:{USER}"),
}
CHANGES_OF_NAME_SERVER: dict[str, tuple[str, ...]] = {
    "updateKvConfig": ("-s", "Space", "-k", "key", "-v", "value"),
    "deleteKvConfig": ("-s", "Space", "-k", "key"),
    "wipeWritePerm": ("-b", "broker-a"),
    "addWritePerm": ("-b", "broker-a"),
    "updateOrderConf": ("-t", OTHER_TOPIC, "-m", "put", "-v", "broker-a:1"),
    "updateNamesrvConfig": ("-k", "orderMessageEnable", "-v", "true"),
}
"""Name servers serve everybody: Java's always, ours unless its ``authenticationEnabled`` is set."""
READS = {
    "topicRoute", "topicStatus", "topicClusterList", "brokerStatus", "queryMsgById",
    "queryMsgByKey", "queryMsgByUniqueKey", "queryMsgByOffset", "queryMsgTraceById", "printMsg",
    "printMsgByQueue", "brokerConsumeStats", "producerConnection", "consumerConnection",
    "consumerProgress", "consumerStatus", "producer", "clusterList", "topicList",
    "startMonitoring", "statsAll", "allocateMQ", "getNamesrvConfig", "getBrokerConfig",
    "getConsumerConfig", "queryCq", "consumeMessage", "exportMetadata", "exportConfigs",
    "exportMetrics",
    "clusterRT",  # it sends as checkMsgSendRT does, and never ends
}  # fmt: skip
READS_4 = {"clusterAclConfigVersion", "getAclConfig"}
READS_5 = {
    "exportMetadataInRocksDB", "exportPopRecord", "haStatus", "getSyncStateSet", "getBrokerEpoch",
    "getControllerMetaData", "getControllerConfig", "dumpCompactionLog", "getColdDataFlowCtrInfo",
    "getUser", "listUser", "getAcl", "listAcl", "rocksDBConfigToJson",
    "checkRocksdbCqWriteProgress", "getBrokerLiteInfo", "getParentTopicInfo", "getLiteTopicInfo",
    "getLiteClientInfo", "getLiteGroupInfo",
    "remappingStaticTopic",  # without a static topic, it sends no request
}  # fmt: skip
STRICTER = {
    "4.9.7": {
        "cloneGroupOffset", "resetOffsetByTime", "skipAccumulatedMessage", "cleanExpiredCQ",
        "deleteExpiredCommitLog", "cleanUnusedTopic",
        # every account may make itself an admin
        "updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr",
    },
    "5.5.0": {
        "updateSubGroup", "updateBrokerConfig", "cleanExpiredCQ", "deleteExpiredCommitLog",
        "cleanUnusedTopic", "updateTopicList", "updateSubGroupList", "setConsumeMode",
        "switchTimerEngine", "updateColdDataFlowCtrGroupConfig",
        "removeColdDataFlowCtrGroupConfig", "setCommitLogReadAheadMode",
        # The official broker does not know these requests, and ours needs a super user for them.
        "updateControllerConfig", "electMaster", "cleanBrokerMetadata",
    },
}  # fmt: skip
"""Version -> commands that its broker does not refuse for lack of a permission."""
SILENT = {"checkMsgSendRT": "false", "triggerLiteDispatch": "error"}
"""Commands that print no reason, and what they print."""
REFUSAL = re.compile(
    r"CODE: 16 DESC: User:some-user has no permission to access .*"
    r"|CODE: 1 DESC: org\.apache\.rocketmq\.acl\.common\.AclException: (Need|No) .*"
)
PLACE = re.compile(r", org\.apache\.rocketmq\.acl\.plain\.\S+\(\S+\)")
"""Where Java refused: after the text in the replies of 4.9.7."""


@pytest.fixture(scope="module", params=TOOLS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    """Start both clusters with access control, and the tools of a user with few permissions."""
    version = request.param
    folder = tmp_path_factory.mktemp("normal-user")
    settings = secured_settings(version, folder / "home")
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(_or_skip(lambda: JavaClient(version, folder / "java")))
        official = stack.enter_context(
            JavaCluster(
                version, folder / "official", secured.SETTINGS[version],
                files=secured.FILES[version],
            )
        )  # fmt: skip
        namesrv, broker, conf = stack.enter_context(our_cluster(folder / "ours", settings))
        sides = Side(namesrv, broker, []), Side(official.namesrv, official.address, [])
        pair = Both(java, *sides, conf, folder / "java", is_secured=True)
        write_tools_file(folder / "java", ADMIN, ADMIN_SECRET)
        for side in sides:
            pair.run(side, "updateTopic", "-b", "BROKER", "-t", f"%RETRY%{OTHER_GROUP}")
            with admin(side) as prepared:
                for topic in (TOPIC, OTHER_TOPIC):
                    prepared.create_topic(topic, queue_count=1)
                for group in (GROUP, OTHER_GROUP):
                    prepared.create_group(group)
                if version >= "5":
                    asyncio.run(create_user(side))
        write_tools_file(folder / "java", USER, USER_SECRET)
        yield pair


def admin(side: Side) -> blocking.Admin:
    return blocking.Admin(client=secured.config_of(side.namesrv, ADMIN, ADMIN_SECRET))


async def create_user(side: Side) -> None:
    async with Admin(client=secured.config_of(side.namesrv, ADMIN, ADMIN_SECRET)) as asking:
        await secured.create_user(asking, {TOPIC: "PUB|SUB"}, {GROUP: "PUB|SUB"})


def state(both: Both) -> object:
    """Return topics, groups, settings and accounts of our broker."""
    broker = both.ours.broker
    with admin(both.ours) as asking:
        seen = asking.topic_configs(broker), asking.groups(), asking.broker_config(broker)
        if both.is_4:
            return *seen, (both.conf.parent.parent / "home/conf/plain_acl.yml").read_bytes()
        return *seen, asking.users(), asking.acls()


def refusal(text: str) -> str:
    """Return why a command was refused; empty if it was not."""
    match = REFUSAL.search(PLACE.sub("", text))
    return match[0] if match is not None else ""


def test_no_command_changes_our_broker(both: Both, tmp_path: Path) -> None:
    topics, groups = tmp_path / "topics.json", tmp_path / "groups.json"
    topics.write_text(json.dumps([{"topicName": "Listed", "perm": 6}]))
    groups.write_text(json.dumps([{"groupName": "Listed"}]))
    files = {"TOPICS": str(topics), "GROUPS": str(groups)}
    before = state(both)
    for name, arguments in (CHANGES | (CHANGES_4 if both.is_4 else CHANGES_5)).items():
        words = [files.get(word, word) for word in arguments]
        ours, theirs = (masked(both.run(side, name, *words)) for side in both.sides)
        if name in SILENT:
            assert SILENT[name] in ours, ours
            assert SILENT[name] in theirs, theirs
        else:
            assert refusal(ours), (name, ours)
            is_stricter = name in STRICTER[both.java.version]
            assert refusal(theirs) == ("" if is_stricter else refusal(ours)), (name, theirs)
        assert state(both) == before, name


def test_every_command_is_known(both: Both) -> None:
    printed = both.java.ask("mqadmin", arguments=[])
    commands = set(re.findall(r"^ {3}(\w+) ", printed, re.MULTILINE))
    known = CHANGES.keys() | CHANGES_OF_NAME_SERVER.keys() | READS
    known |= CHANGES_4.keys() | READS_4 if both.is_4 else CHANGES_5.keys() | READS_5
    assert commands == known


def test_name_servers_serve_everybody(both: Both) -> None:
    for name, arguments in CHANGES_OF_NAME_SERVER.items():
        text = both.prints(name, *arguments, masks=[(r"OK, \d+$", "OK, N")])
        assert re.search("success|OK", text), (name, text)
