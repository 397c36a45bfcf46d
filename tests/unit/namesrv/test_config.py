"""Settings of the name server: Java's names and defaults, and changes at runtime."""

import dataclasses
from pathlib import Path

import pytest

from reput.config import parse_properties
from reput.errors import InvalidOption, WriteFailed
from reput.namesrv import config
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.remote_settings import RemoteSettings

# Defaults of 4.9.7's and 5.5.0's NamesrvConfig and NettyServerConfig, from their getters.
DEFAULTS = {
    "orderMessageEnable": "false",
    "returnOrderTopicConfigToBroker": "true",
    "scanNotActiveBrokerInterval": "5000",
    "enableAllTopicList": "true",
    "enableTopicList": "true",
    "needWaitForService": "false",
    "waitSecondsForService": "45",
    "configBlackList": "configBlackList;configStorePath;kvConfigPath",
    "notifyMinBrokerIdChanged": "false",
    "enableControllerInNamesrv": "false",
    "bindAddress": "0.0.0.0",
    "listenPort": "9876",  # Of NamesrvStartup.
    "serverChannelMaxIdleTimeSeconds": "120",
}


@pytest.fixture
def current(tmp_path: Path) -> CurrentConfig:
    return CurrentConfig(
        NamesrvConfig(
            config_store_path=str(tmp_path / "namesrv.properties"),
            kv_config_path=str(tmp_path / "kvConfig.json"),
        )
    )


def change(current: CurrentConfig, text: str) -> dict[str, str]:
    plan = current.plan(text)
    current.write(plan)
    current.apply(plan)
    return plan.changes


def test_defaults_equal_those_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    ours = {
        key: text
        for key, text in parse_properties(CurrentConfig(NamesrvConfig()).text()).items()
        if not key.startswith("reput") and key != "metricsPort"
    }
    assert ours == {
        **DEFAULTS,
        "kvConfigPath": "/home/someone/namesrv/kvConfig.json",
        "configStorePath": "/home/someone/namesrv/namesrv.properties",
    }
    monkeypatch.setenv("ROCKETMQ_HOME", "/opt/rocketmq")
    assert NamesrvConfig().rocketmq_home == "/opt/rocketmq"


def test_changes_are_written_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("# ours\nlistenPort = 19876\nserverWorkerThreads=8\nlistenPrt=1\n")
    current, unknown = config.load(str(path), environment={"REPUT_ORDER_MESSAGE_ENABLE": "true"})
    assert current.value.listen_port == 19876
    assert current.value.order_message_enable
    assert current.value.config_store_path == str(path)
    assert [str(key) for key in unknown] == [
        f"{path}: unknown key 'listenPrt'; did you mean 'listenPort'?"
    ]
    change(current, "waitSecondsForService=1")
    written = parse_properties(path.read_text("ascii"))
    assert written["waitSecondsForService"] == "1"
    assert written["listenPort"] == "19876"
    # No earlier setting is lost, and the comments are in the backup.
    assert written["serverWorkerThreads"] == "8"
    assert written["listenPrt"] == "1"
    assert "# ours" in (tmp_path / "namesrv.conf.bak").read_text()
    again, _ = config.load(str(path))
    assert again.value == current.value


def test_without_a_file() -> None:
    current, unknown = config.load(explicit={"listen_port": 0})
    assert current.value.listen_port == 0
    assert unknown == ()


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("listenPort", "70000", "from 0 to 65535"),
        ("scanNotActiveBrokerInterval", "0", "from 1"),
        ("scanNotActiveBrokerInterval", "2147483647", "from 1 to 3600000"),
        ("waitSecondsForService", "2147483647", "from 0 to 86400"),
        ("orderMessageEnable", "maybe", "true or false"),
        ("clusterTest", "true", "false: routes of another environment"),
        ("supportActingMaster", "true", "false: a slave never"),
        ("authenticationEnabled", "true", "false: name servers trust their network"),
        ("authorizationEnabled", "true", "tls.server.mode=enforcing"),
        ("deleteTopicWithBrokerRegistration", "true", "false: a broker that registers one topic"),
    ],
)
def test_wrong_values_are_refused(
    tmp_path: Path, current: CurrentConfig, key: str, value: str, allowed: str
) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(f"{key}={value}\n")
    with pytest.raises(InvalidOption, match=f"{key}.*{value}.*{allowed}"):
        config.load(str(path))
    current.value = dataclasses.replace(current.value, reput_remote_settings=RemoteSettings.JAVA)
    before = current.value
    with pytest.raises(InvalidOption, match=f"{key}.*{value}.*{allowed}"):
        change(current, f"waitSecondsForService=1\n{key}={value}\n")
    assert current.value is before
    assert not Path(before.config_store_path).exists()


def test_passwords_in_the_file_are_hidden_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("tls.server.keyPassword=hidden\nproductEnvName=center\n")
    current, _ = config.load(str(path))
    assert "hidden" not in current.text()
    assert "productEnvName=center\n" in current.text()
    change(current, "orderMessageEnable=true")
    assert "tls.server.keyPassword=hidden\n" in path.read_text()


def test_a_change_that_cannot_be_written_is_refused(tmp_path: Path, current: CurrentConfig) -> None:
    (tmp_path / "namesrv.properties").mkdir()
    with pytest.raises(WriteFailed):
        change(current, "orderMessageEnable=true")
    assert not current.value.order_message_enable


def test_text_round_trip() -> None:
    odd = " \\ =:\t#ü\U0001f600\nx"
    current = CurrentConfig(NamesrvConfig(rocketmq_home=odd), {odd: odd})
    pairs = parse_properties(current.text())
    assert pairs["rocketmqHome"] == odd
    assert pairs[odd] == odd
    assert current.text().isascii()
