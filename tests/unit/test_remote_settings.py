"""The settings that may be changed over the network."""

import dataclasses

import pytest

from reput import config, remote_settings
from reput.broker.settings.config import BrokerConfig
from reput.errors import RequestRefused
from reput.namesrv.config import NamesrvConfig
from reput.remote_settings import RemoteSettings
from reput.store.config import StoreConfig

CHANGED_BY_OPERATORS = {
    "autoCreateTopicEnable", "brokerPermission", "deleteWhen", "diskMaxUsedSpaceRatio",
    "enablePropertyFilter", "fileReservedTime", "flushDiskType", "messageDelayLevel",
    "transactionCheckMax", "timerStopEnqueue", "orderMessageEnable",
    "needWaitForService",
}  # fmt: skip


def keys() -> list[str]:
    parts = (BrokerConfig, StoreConfig, NamesrvConfig)
    return [config.key_of(field.name) for part in parts for field in dataclasses.fields(part)]


def test_paths_names_ports_and_our_settings_are_protected() -> None:
    words = ("path", "port", "address", "folder", "home", "reput", "brokerid", "brokername")
    for key in keys():
        if any(word in key.lower() for word in words):
            assert remote_settings.is_protected(key), key


def test_settings_that_operators_change_remotely_are_not_protected() -> None:
    assert set(keys()) >= CHANGED_BY_OPERATORS
    assert not [key for key in CHANGED_BY_OPERATORS if remote_settings.is_protected(key)]


@pytest.mark.parametrize(
    ("mode", "key", "is_refused"),
    [
        ("safe", "namesrvAddr", True),
        ("safe", "brokerName", True),
        ("safe", "pullHoldMax", True),
        ("safe", "brokerRole", True),
        ("safe", "brokerId", True),
        ("safe", "haForceMaster", True),
        ("safe", "haDivergedPolicy", True),
        ("safe", "rebalanceLockMaxLiveTime", True),
        ("safe", "maxPopPollingSize", False),
        ("java", "brokerName", False),
        ("java", "tls.server.mode", True),
        ("java", "useTLS", True),
        ("java", "reputProxyProtocolFrom", True),
        ("java", "reputRemoteSettings", True),
        ("none", "fileReservedTime", True),
        ("none", "reputRemoteSettings", True),
    ],
)
def test_modes(mode: str, key: str, is_refused: bool) -> None:
    if not is_refused:
        remote_settings.check([key], RemoteSettings(mode), file="broker.conf")
        return
    with pytest.raises(RequestRefused, match=rf"{key} cannot .*=\w+\): .*broker\.conf") as caught:
        remote_settings.check([key, "z"], RemoteSettings(mode), file="broker.conf")
    assert caught.value.response_code == 16


def test_secrets_are_not_shown() -> None:
    secrets = (
        "initAuthenticationUser", "innerClientAuthenticationCredentials", "accessKey", "secretKey",
        "tls.server.keyPassword", "metricsGrpcExporterHeader",
    )  # fmt: skip
    for key in secrets:
        assert remote_settings.shown(key, "hidden") == "(not shown)"
    assert remote_settings.shown("brokerName", "a") == "a"
    assert remote_settings.shown("secretKey", "") == ""
