"""Broker settings: Java's names, Java's defaults, Java's interpretation of a broker.conf."""

import dataclasses

import pytest

from interop.java_oracle import JavaError, Oracle
from reput import config
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import BrokerConfig, pairs
from reput.broker.settings.keys import ACCEPTED_WITHOUT_EFFECT, ONLY
from reput.cli.moving import way_back
from reput.remoting.tls_settings import TlsSettings
from reput.store.config import (
    ACCEPTED_WITHOUT_EFFECT as STORE_WITHOUT_EFFECT,
    StoreConfig,
)

pytestmark = pytest.mark.interop

STORE_BEAN = "org.apache.rocketmq.store.config.MessageStoreConfig"
BROKER_BEAN = "org.apache.rocketmq.common.BrokerConfig"
BEANS = (
    "org.apache.rocketmq.remoting.netty.NettyClientConfig",
    "org.apache.rocketmq.remoting.netty.NettyServerConfig",
    BROKER_BEAN,
)
AUTH_BEAN = "org.apache.rocketmq.auth.config.AuthConfig"
"""Class of the settings that 5.3 and later also read from broker.conf."""

OURS = {
    "controllerHeartBeatTimeoutMills",  # Java 10 s
    "fastPortEnable",  # Java's fast port is always on
    "grpcServerPort",  # Java's proxy has it
    "metricsPort",  # Java has another exporter
    "pullHoldMax",  # Java has no limit
    "rebalanceLockMaxLiveTime",  # a system property in Java
}
SINCE_5 = {
    "brokerElectionPriority",
    "brokerHeartbeatInterval",
    "controllerAddr",
    "controllerHeartBeatTimeoutMills",
    "enableControllerMode",
    "priorityOrderAsc",
    "popFromRetryProbabilityForPriority",
    "defaultMessageRequestMode",
    "defaultPopShareQueueNum",
    "maxPopPollingSize",
    "enableRetryTopicV2",
    "popFromRetryProbability",
    "retrieveMessageFromPopRetryTopicV1",
    "reviveQueueNum",
    "serverLoadBalancerEnable",
    "enableMixedMessageType",
    "useServerSideResetOffset",
    "recallMessageEnable",
    "allowRecallWhenBrokerNotWriteable",
    "bindAddress",
    "channelExpiredTimeout",  # 4.x: the same two minutes, fixed
    "clearRetryTopicWhenDeleteTopic",
    "configBlackList",
    "metricsExporterType",
    "metricsLabel",
    "metricsPromExporterHost",
    "metricsPromExporterPort",
    "maxLiteSubscriptionCount",
    "liteSubscriptionCheckTimeoutMills",
    "liteTtlCheckInterval",
    "validateSystemTopicWhenUpdateTopic",
}
OF_THE_MACHINE = {"brokerName", "brokerIP1"}
"""Settings whose Java defaults depend on the machine, so that no test can predict them."""

SET_AT_START = {"listenPort": "10911"}
"""Settings that BrokerStartup sets before it reads the file."""

KEYS = {config.key_of(field.name): field.name for field in dataclasses.fields(BrokerConfig)}


def settings(oracle: Oracle, text: str = "") -> dict[str, str]:
    """Return the values of the getters of Java's classes after a broker.conf."""
    values: dict[str, str] = {}
    for bean in BEANS:
        values |= oracle.ask_one("settings", bean, text)
    if "listenPort" not in config.parse_properties(text):
        values |= SET_AT_START
    return values


def auth_keys(oracle: Oracle) -> set[str]:
    try:
        return set(oracle.ask_one("settings", AUTH_BEAN, ""))
    except JavaError:
        assert oracle.version.startswith("4."), "5.5 has the class"
        return set()


def ours(text: str = "") -> dict[str, str]:
    return pairs(config.load(BrokerConfig, config.parse_properties(text)).value)


def test_every_default_equals_that_of_java(table_oracle: Oracle) -> None:
    of_store = table_oracle.ask_one("settings", STORE_BEAN, "")
    # In Java these belong to the store.
    of_store = {key: of_store[key] for key in ("defaultQueryMaxNum", "flushDelayOffsetInterval")}
    java = settings(table_oracle) | of_store
    expected = {key for key in KEYS if not key.startswith("reput")} - OURS - OF_THE_MACHINE
    if table_oracle.version.startswith("4."):
        expected -= SINCE_5
        assert java.pop("registerBrokerTimeoutMills") == "6000"  # ours equals that of 5.x
        assert java.pop("transactionCheckInterval") == "60000"
        expected -= {"registerBrokerTimeoutMills", "transactionCheckInterval"}
    else:
        expected -= {"aclEnable"}  # of access control 1.0
    if table_oracle.version.startswith("4.5"):
        expected.discard("storeReplyMessageEnable")
    mine = ours()
    assert {key: mine[key] or "null" for key in expected} == {
        key: java[key] or "null" for key in expected
    }


def test_every_key_of_java_is_accepted(table_oracle: Oracle) -> None:
    java = set(settings(table_oracle)) | auth_keys(table_oracle)
    store = {config.key_of(field.name) for field in dataclasses.fields(StoreConfig)}
    others = {*store, *TlsSettings.keys.renamed, *config.texts(AccessSettings())}
    assert java <= {*KEYS, *ACCEPTED_WITHOUT_EFFECT, *ONLY, *others}


def test_the_way_back_names_the_keys_that_java_does_not_know(table_oracle: Oracle) -> None:
    of_store = set(table_oracle.ask_one("settings", STORE_BEAN, ""))
    java = set(settings(table_oracle)) | auth_keys(table_oracle) | of_store
    store = {config.key_of(field.name) for field in dataclasses.fields(StoreConfig)}
    mine = {*KEYS, *store, *config.texts(AccessSettings()), "haMaxGapNotInSync"}
    unknown = way_back.unknown_keys(mine, way_back.parse_version(table_oracle.version))
    # The check reports aclEnable, of access control 1.0, by itself.
    assert set(unknown) == mine - java - {"aclEnable"}


def test_fixed_settings_equal_the_defaults_of_java(table_oracle: Oracle) -> None:
    java = settings(table_oracle)
    assert {key: java[key] for key in ONLY if key in java} == {
        key: accepted for key, (accepted, _) in ONLY.items() if key in java
    }


GONE_IN_5 = {
    "commercialBigCount",
    "commercialEnable",
    "commercialTimerCount",
    "commercialTransCount",
    "filterServerNums",
    "maxDelayTime",
}


def test_ignored_keys_are_keys_of_java(table_oracle: Oracle) -> None:
    """Each ignored key is a key of 4.x or 5.5, and no key is both ignored and used."""
    assert not set(KEYS) & {*ACCEPTED_WITHOUT_EFFECT, *ONLY}
    if table_oracle.version == "5.5.0":
        java = set(settings(table_oracle)) | auth_keys(table_oracle)
        assert {*ACCEPTED_WITHOUT_EFFECT, *ONLY} - java == GONE_IN_5
    else:
        assert set(settings(table_oracle)) >= GONE_IN_5


def test_keys_that_the_store_skips_are_keys_of_the_broker() -> None:
    store = {config.key_of(field.name) for field in dataclasses.fields(StoreConfig)}
    assert not store & {*KEYS, *ACCEPTED_WITHOUT_EFFECT, *ONLY}
    both = set(STORE_WITHOUT_EFFECT) & set(KEYS)
    assert both == {
        "defaultQueryMaxNum",
        "expectConsumerNumUseFilter",
        "flushConsumerOffsetInterval",
        "flushDelayOffsetInterval",
        "maxErrorRateOfBloomFilter",
    }


@pytest.mark.parametrize(
    "text",
    [
        "brokerName = broker-b\nbrokerId: 3\nbrokerClusterName=Other",
        "brokerIP1=10.1.2.3\nlistenPort=20911",
        "namesrvAddr=10.0.0.1:9876;10.0.0.2:9876",
        "autoCreateTopicEnable=FALSE\ntraceTopicEnable=True",
        "brokerPermission=4\ndefaultTopicQueueNums=16",
        "flushConsumerOffsetInterval=1000\nshortPollingTimeMills=+50",
        "serverChannelMaxIdleTimeSeconds=30\nregisterNameServerPeriod=20000",
    ],
)
def test_java_reads_equal_values_from_a_broker_conf(table_oracle: Oracle, text: str) -> None:
    java = settings(table_oracle, text)
    mine = ours(text)
    for key in config.parse_properties(text):
        assert mine[key] == java[key]
