"""The broker's settings: refused values, warnings, and options shared with the store."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cases import each
from reput import config
from reput.broker.settings import config as broker_config
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import BrokerConfig, load, pairs
from reput.errors import InvalidOption
from reput.namesrv.config import NamesrvConfig
from reput.remoting.tls_settings import TlsSettings
from reput.store.config import FlushDiskType, StoreConfig

SOURCES = Path(broker_config.__file__).parents[1]


def test_one_file_configures_broker_and_store(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName = b\nbrokerIP1=10.0.0.7\nflushDiskType=SYNC_FLUSH\n")
    loaded = load(conf, environment={"REPUT_BROKER_IP1": "10.0.0.8"}, explicit={"listen_port": 7})
    assert (loaded.broker.broker_name, loaded.broker.broker_ip1) == ("b", "10.0.0.8")
    assert loaded.broker.listen_port == 7
    assert loaded.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert loaded.warnings == ()


def test_warnings_name_unknown_keys_and_keys_without_effect() -> None:
    source = {"brokerNmae": "b", "sendMessageThreadPoolNums": "4", "totalReplicas": "3"}
    warnings = load(source).warnings
    assert warnings == (
        "settings: unknown key 'brokerNmae'; did you mean 'brokerName'?",
        "sendMessageThreadPoolNums has no effect: one thread serves all connections",
        "totalReplicas has no effect: the number of slaves is that of their connections",
    )


def test_keys_that_the_broker_uses_cause_no_warning() -> None:
    """The store does not use these settings and reports them; the broker does use them."""
    loaded = load({"flushConsumerOffsetInterval": "1000", "defaultQueryMaxNum": "5"})
    assert loaded.warnings == ()
    assert loaded.broker.flush_consumer_offset_interval == 1000
    assert loaded.broker.default_query_max_num == 5


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("aclEnable", "true", "with rocketmqHome"),
        ("tls.server.mode", "strict", "disabled, permissive, enforcing"),
        ("enableControllerMode", "true", "the controllers, host:port separated by semicolons"),
        ("enableDLegerCommitLog", "true", "DLedger"),
        ("messageStorePlugIn", "org.Plug", "Java classes"),
        ("defaultMessageRequestMode", "PUSH", "PULL, POP"),
        ("listenPort", "70000", "0 to 65535"),
        ("listenPort", "2", "3 to 65535"),
        ("brokerId", "-2", "-1 to"),
        ("haListenPort", "10911", "clients use 10909 and 10911"),
        ("haListenPort", "10909", "clients use 10909 and 10911"),
        ("haMasterAddress", "10.0.0.1", "host:port"),
        ("haHousekeepingInterval", "5000", "more than haSendHeartbeatInterval, 5000"),
        ("haTransferBatchSize", "4194304", "to 4194292"),
        ("duplicationEnable", "true", "false"),
        ("skipPreOnline", "true", "false"),
        ("lockInStrictMode", "true", "false"),
        ("brokerPermission", "8", "0 to 7"),
        ("brokerName", " ", "a name"),
        ("defaultTopicQueueNums", "0", "1 to"),
        ("autoCreateTopicEnable", "yes", "true or false"),
        ("namesrvAddr", "10.0.0.1", "host:port"),
        ("namesrvAddr", "10.0.0.1:9876;:9876", "host:port"),
        ("namesrvAddr", "10.0.0.1:99999", "host:port"),
    ],
)
def test_wrong_values_are_refused_with_the_allowed_ones(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(text)) as raised:
        load({key: value})
    assert key in str(raised.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}, "waits for no slave"),
        ({"inSyncReplicas": "2"}, "inSyncReplicas=2 has no effect: brokerRole is ASYNC_MASTER"),
    ],
)
def test_settings_that_promise_more_than_they_do_cause_a_warning(
    source: dict[str, str], text: str
) -> None:
    (warning,) = load(source).warnings
    assert text in warning


@pytest.mark.parametrize("value", ["false", "FALSE"])
def test_fixed_settings_may_be_configured_with_their_value(value: str) -> None:
    assert load({"enableControllerMode": value, "messageStorePlugIn": ""}).warnings == ()


def test_name_servers_are_separated_as_in_java() -> None:
    assert BrokerConfig(namesrv_addr="a:1; b:2 ;").name_servers == ("a:1", "b:2")
    assert BrokerConfig(namesrv_addr="[::1]:9876").name_servers == ("[::1]:9876",)
    assert BrokerConfig().name_servers == ()


@each(
    ("source", "problem"),
    [
        ({}, ""),
        ({"brokerId": "0", "controllerAddr": " ; "}, "host:port separated by semicolons"),
        ({"haMasterAddress": "10.0.0.8:10912"}, "the controller names the master"),
        ({"controllerHeartBeatTimeoutMills": "1999"}, "at least 2000, two intervals"),
        ({"brokerHeartbeatInterval": "1501"}, "at least 3002, two intervals"),
    ],
)
def test_settings_of_a_broker_under_a_controller(source: dict[str, str], problem: str) -> None:
    known = {"enableControllerMode": "true", "controllerAddr": "10.0.0.9:9878", "brokerId": "-1"}
    settings = known | {"brokerRole": "SLAVE"} | source
    if problem:
        with pytest.raises(InvalidOption, match=problem):
            load(settings)
    else:
        assert load(settings).warnings == ()
    with pytest.raises(InvalidOption, match="0 is the id of the master"):
        load({"brokerRole": "SLAVE", "brokerId": "-1"})


def test_printed_settings_can_be_parsed() -> None:
    first = load({"brokerName": "b", "fileReservedTime": "48", "enablePropertyFilter": "true"})
    printed = pairs(first.broker, first.store)
    given = {key: text for key, text in printed.items() if text}
    second = load(given)
    assert (second.broker, second.store) == (first.broker, first.store)
    fields = [*dataclasses.fields(BrokerConfig), *dataclasses.fields(StoreConfig)]
    assert len(printed) == len(fields)


def test_every_option_is_used() -> None:
    """An option without effect would be a broken promise."""
    text = "\n".join(
        path.read_text()
        for path in SOURCES.rglob("*.py")
        if path.parts[-2:] not in {("broker", "config.py"), ("broker", "live_config.py")}
    )
    names = {field.name for field in dataclasses.fields(BrokerConfig)} - {
        "namesrv_addr",  # as name_servers
        "config_black_list",  # as fixed_keys
    }
    unread = {name for name in names if not re.search(rf"\b{name}\b", text)}
    assert unread == set()


# --- keys of Java ---------------------------------------------------------------------------------


JAVA_KEYS = json.loads((Path(__file__).parents[3] / "data/config/java-keys.json").read_text())
"""Keys by version and class: those of the setters of the official jars, through which Java sets
them."""
VERSIONS = ("4.5.2", "4.9.7", "5.5.0")


def known_keys(*parts: Any) -> set[str]:
    """Return the keys that have an effect, or none for a reason, or are old names."""
    known: set[str] = set()
    for part in parts:
        keys = part.keys
        known |= {*config.texts(part()), *keys.renamed, *keys.without_effect, *keys.only}
    return known


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_knows_each_key_of_java(version: str) -> None:
    classes = JAVA_KEYS[version].items()
    keys = {key for name, keys in classes if name != "NamesrvConfig" for key in keys}
    assert len(keys) > 150
    assert keys - known_keys(TlsSettings, AccessSettings, StoreConfig, BrokerConfig) == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_name_server_knows_each_key_of_java(version: str) -> None:
    names = ("NamesrvConfig", "NettyServerConfig", "NettyClientConfig")
    keys = {key for name in names for key in JAVA_KEYS[version][name]}
    assert len(keys) > 25
    assert keys - known_keys(TlsSettings, NamesrvConfig) == set()


def test_old_names_of_sizes_are_accepted() -> None:
    old = {"mapedFileSizeCommitLog": "67108864", "mapedFileSizeConsumeQueue": "2000"}
    loaded = load(old)
    assert loaded.warnings == ()
    assert loaded.store.mapped_file_size_commit_log == 64 << 20
    assert loaded.store.mapped_file_size_consume_queue == 2000
