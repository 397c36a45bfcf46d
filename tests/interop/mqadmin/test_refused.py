"""mqadmin commands for unsupported features: the tool prints a refusal, and none hangs."""

import re

import pytest

from interop.mqadmin.sides import Both

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

ACL = ("-s", "User:user", "-r", "Topic:T", "-a", "PUB", "-d", "ALLOW")
ACCOUNTS_4 = (
    ("clusterAclConfigVersion", "-b", "BROKER"),
    ("deleteAclConfig", "-b", "BROKER", "-a", "RocketMQ"),
    ("getAclConfig", "-b", "BROKER"),
    ("updateAclConfig", "-b", "BROKER", "-a", "RocketMQ", "-s", "12345678"),
    ("updateGlobalWhiteAddr", "-b", "BROKER", "-g", "10.0.0.1"),
)
USERS_5 = (
    # Java refuses these as well unless a user store is configured, with another text.
    ("createUser", "-b", "BROKER", "-u", "user", "-p", "password"),
    ("updateUser", "-b", "BROKER", "-u", "user", "-p", "password"),
    ("deleteUser", "-b", "BROKER", "-u", "user"),
    ("getUser", "-b", "BROKER", "-u", "user"),
    ("listUser", "-b", "BROKER"),
    ("copyUser", "-f", "BROKER", "-t", "BROKER", "-u", "user"),
    ("createAcl", "-b", "BROKER", *ACL),
    ("updateAcl", "-b", "BROKER", *ACL),
    ("deleteAcl", "-b", "BROKER", "-s", "User:user"),
    ("getAcl", "-b", "BROKER", "-s", "User:user"),
    ("listAcl", "-b", "BROKER"),
    ("copyAcl", "-f", "BROKER", "-t", "BROKER", "-s", "User:user"),
)
OURS_5 = (
    ("getBrokerEpoch", "-b", "broker-a"),
    # Java's broker supports these.
    ("getColdDataFlowCtrInfo", "-b", "BROKER"),
    ("updateColdDataFlowCtrGroupConfig", "-b", "BROKER", "-g", "Progress", "-v", "1024"),
    ("removeColdDataFlowCtrGroupConfig", "-b", "BROKER", "-g", "Progress"),
    ("setCommitLogReadAheadMode", "-b", "BROKER", "-m", "0"),
    ("checkRocksdbCqWriteProgress", "-c", "DefaultCluster"),
    ("rocksDBConfigToJson", "-c", "DefaultCluster", "-t", "topics"),
    ("updateStaticTopic", "-b", "broker-a", "-t", "Static", "-qn", "2"),
    ("getBrokerLiteInfo", "-b", "BROKER"),
)
BOTH_5 = (
    # A broker is not a controller,
    ("getControllerMetaData", "-a", "BROKER"),
    ("getControllerConfig", "-a", "BROKER"),
    ("updateControllerConfig", "-a", "BROKER", "-k", "key", "-v", "value"),
    ("getSyncStateSet", "-a", "BROKER", "-b", "broker-a"),
    ("electMaster", "-a", "BROKER", "-b", "0", "-bn", "broker-a", "-c", "DefaultCluster"),
    ("cleanBrokerMetadata", "-a", "BROKER", "-bn", "broker-a", "-l"),
    # not a container of brokers,
    ("addBroker", "-c", "BROKER", "-b", "/broker.conf"),
    ("removeBroker", "-c", "BROKER", "-b", "DefaultCluster:broker-b:0"),
    # and a topic is neither static nor the parent of light ones.
    ("remappingStaticTopic", "-b", "broker-a", "-t", "Messages"),
    ("getParentTopicInfo", "-p", "Messages"),
    ("getLiteTopicInfo", "-p", "Messages", "-l", "light"),
    ("getLiteClientInfo", "-p", "Messages", "-g", "Progress", "-c", "client"),
    ("getLiteGroupInfo", "-p", "Messages", "-g", "Progress"),
    ("triggerLiteDispatch", "-p", "Messages", "-g", "Progress"),
    # These read local files.
    ("exportMetadataInRocksDB", "-p", "/no-folder", "-t", "topics"),
    ("dumpCompactionLog", "-f", "/no-file"),
)


def test_unsupported_commands_are_refused(both: Both) -> None:
    commands = () if both.is_4 else OURS_5
    if not both.is_secured:
        commands += ACCOUNTS_4 if both.is_4 else USERS_5
    for command in commands:
        text = both.run_masked(*command)
        # 16: users and rules, as authentication is off.
        is_off = "authenticationEnabled is false" in text
        assert re.search(r"CODE: 16\b" if is_off else r"CODE: 3\b", text), (command, text)
        assert "success" not in text


def test_a_second_timer_engine_is_refused(both: Both) -> None:
    """Our timer has one engine. Java also refuses the second one, unless enabled at the start."""
    if both.is_4:
        pytest.skip("no such case: only in 5.4 and later")
    assert "success" in both.prints("switchTimerEngine", "-b", "BROKER", "-e", "F")
    text = both.run_masked("switchTimerEngine", "-b", "BROKER", "-e", "R")
    assert "timerRocksDBEnable must be configured true when broker start" in text
    assert "success" not in text


def test_commands_for_other_servers_are_refused(both: Both) -> None:
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    for command in BOTH_5:
        text = both.prints(*command, masks=[("Unconsumed Timestamp.*", "Unconsumed Timestamp")])
        assert re.search(r"CODE: 3\b|error|invalid|not exist|should not be null", text), command
        assert "success" not in text
