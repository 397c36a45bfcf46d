"""25, 26, 27, 329 at a broker: settings and the effects of their changes."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, strategies as st

import world
from cases import case
from reput import config
from reput.broker.server import Broker
from reput.broker.settings.config import BrokerConfig, load
from reput.broker.settings.live import LiveConfig
from reput.errors import InvalidOption, RequestRefused
from reput.format import command as commands
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.signing import Signer
from reput.remote_settings import RemoteSettings
from reput.remoting.client import RemotingClient
from reput.store.config import BrokerRole, StoreConfig
from world import Subject

CONF = """\
# who
brokerName = broker-a
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort=0
storePathRootDir=ROOT
mappedFileSizeCommitLog=16777216
mappedFileSizeConsumeQueue=400000
maxHashSlotNum=10000
maxIndexNum=40000

# how long
fileReservedTime = 48
haMaxGapNotInSync = 1024
messageDelayLevel = 1s \\
    5s
"""


def text_of(path: Path) -> str:
    return path.read_text(encoding="latin-1")


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(CONF.replace("ROOT", str(tmp_path / "store")))
    return path


@pytest_asyncio.fixture
async def started(conf: Path) -> AsyncIterator[Subject]:
    """Return a broker that was started with a broker.conf."""
    settings = load(conf)
    broker = Broker(settings.broker, settings.store, config_path=str(conf))
    async with broker, RemotingClient() as client:
        yield Subject(broker, client, [])


async def update(subject: Subject, text: str) -> Command:
    return await subject.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def shown(subject: Subject) -> dict[str, str]:
    reply = await subject.ask(RequestCode.GET_BROKER_CONFIG)
    return config.parse_properties(reply.body.decode())


async def test_the_file_keeps_its_other_lines(started: Subject, conf: Path) -> None:
    before = text_of(conf)
    await update(started, "fileReservedTime=12\nmessageDelayLevel=1s 2s\nbrokerPermission=4\n")
    after = before.replace("fileReservedTime = 48", "fileReservedTime=12")
    after = after.replace("messageDelayLevel = 1s \\\n    5s", "messageDelayLevel=1s 2s")
    assert text_of(conf) == after + "brokerPermission=4\n"


async def test_settings_on_the_black_list_are_not_changed(tmp_path: Path) -> None:
    black = {"config_black_list": "fileReservedTime; listenPort"}
    async with world.broker(tmp_path, **black) as subject:
        assert (await update(subject, "listenPort=1")).code == ResponseCode.NO_PERMISSION
        reply = await update(subject, "deleteWhen=01")
        assert reply.remark == "not written: the broker was started without a broker.conf"
        assert subject.broker.settings.store.delete_hours == (1,)


async def test_the_number_of_name_servers_is_bounded(tmp_path: Path) -> None:
    async with world.broker(tmp_path, reput_remote_settings=RemoteSettings.JAVA) as subject:
        assert (await update(subject, "namesrvAddr=127.0.0.1:1")).code == ResponseCode.SUCCESS
        servers = ";".join(f"127.0.0.1:{port}" for port in range(1, 34))
        reply = await update(subject, f"namesrvAddr={servers}")
        assert "limit name_servers" in (reply.remark or "")
        assert subject.broker.settings.broker.name_servers == ("127.0.0.1:1",)


async def test_a_long_text_of_settings_is_refused(started: Subject) -> None:
    reply = await update(started, "a \\\n" * 20_000)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "limit settings_bytes" in (reply.remark or "")
    assert started.broker.serving.refusals.counts["settings_bytes"] == 1


async def test_a_changed_setting_cannot_forge_lines_or_show_secrets(
    started: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await update(
        started, "regionId=x\\n2026 ERROR forged\nmetricsGrpcExporterHeader=Bearer-abc\n"
    )
    assert reply.code == ResponseCode.SUCCESS
    (line,) = [text for text in caplog.messages if text.startswith("settings changed by ")]
    assert "\n" not in line
    assert "Bearer-abc" not in line
    assert "'metricsGrpcExporterHeader': '(not shown)'" in line


async def test_a_file_that_cannot_be_written_changes_nothing(started: Subject, conf: Path) -> None:
    os.unlink(conf)  # noqa: PTH108 - nothing waits for it
    reply = await update(started, "fileReservedTime=12")
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert str(conf) in (reply.remark or "")
    assert started.broker.settings.store.file_reserved_time == 48


async def test_the_permission_of_the_broker_is_enforced(started: Subject) -> None:
    await started.send("T", b"one")
    version = started.broker.parts.topics.table.version
    assert (await update(started, "brokerPermission=2")).code == ResponseCode.SUCCESS
    assert (await started.pull("T")).code == ResponseCode.NO_PERMISSION
    assert started.broker.parts.topics.table.version.counter == version.counter + 1
    await update(started, "brokerPermission=6")
    assert (await started.pull("T")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "code", [RequestCode.TRIGGER_DELETE_FILES, RequestCode.DELETE_EXPIRED_COMMITLOG]
)
async def test_expired_files_are_deleted_on_command(
    subject: Subject, code: RequestCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(subject.broker.store.retention, "expire_now", lambda: calls.append(1))
    assert (await subject.ask(code)).code == ResponseCode.SUCCESS
    assert calls == [1]


LINES = st.lists(
    st.one_of(
        st.sampled_from(["", "# c", "! c \\", "a=1", " b : 2", "a = 3 \\", "  4", "\\u0061=5"]),
        st.text("ab=: \t\\#!u0061", max_size=8),
    ),
    max_size=6,
)


@given(
    lines=LINES,
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    is_ended=st.booleans(),
    changes=st.dictionaries(
        st.sampled_from(["a", "b", "new", "k y"]), st.text(max_size=5), max_size=3
    ),
)
def test_a_changed_file_keeps_its_settings_and_adds_the_changes(
    lines: list[str], end: str, is_ended: bool, changes: dict[str, str]
) -> None:
    text = end.join(lines) + (end if is_ended else "")
    try:
        before = config.parse_properties(text)
    except InvalidOption:
        return  # Java does not read it either
    after = config.replace_properties(text, changes)
    assert config.parse_properties(after) == before | changes


REPLICATION_KEYS = {
    "brokerRole": "ASYNC_MASTER",
    "brokerIP2": "10.0.0.8",
    "haSendHeartbeatInterval": "5000",
    "haHousekeepingInterval": "20000",
    "haTransferBatchSize": "1048576",
    "haSlaveFallbehindMax": "268435456",
    "haMaxGapNotInSync": "268435456",
    "slaveTimeout": "3000",
    "totalReplicas": "1",
    "inSyncReplicas": "1",
    "minInSyncReplicas": "1",
    "allAckInSyncStateSet": "false",
    "enableAutoInSyncReplicas": "false",
    "haFlowControlEnable": "false",
    "maxHaTransferByteInSecond": "104857600",
    "haMaxTimeSlaveNotCatchup": "15000",
    "syncFromLastFile": "false",
    "asyncLearner": "false",
    "offsetCheckInSlave": "false",
    "slaveReadEnable": "false",
    "accessMessageInMemoryMaxRatio": "40",
    "duplicationEnable": "false",
    "syncMasterFlushOffsetWhenStartup": "false",
    "maxChecksumRange": "1073741824",
    "maxSlaveResendLength": "268435456",
    "disappearTimeAfterStart": "-1",
    "enableSlaveActingMaster": "false",
    "enableRemoteEscape": "false",
    "skipPreOnline": "false",
    "lockInStrictMode": "false",
    "compatibleWithOldNameSrv": "true",
    "brokerHeartbeatInterval": "1000",
    "brokerNotActiveTimeoutMillis": "10000",
    "sendHeartbeatTimeoutMillis": "1000",
    "syncBrokerMemberGroupPeriod": "1000",
    "forwardTimeout": "3000",
    "enableControllerMode": "false",
    "fetchControllerAddrByDnsLookup": "false",
    "syncBrokerMetadataPeriod": "5000",
    "checkSyncStateSetPeriod": "5000",
    "syncControllerMetadataPeriod": "10000",
    "controllerHeartBeatTimeoutMills": "3000",
    "brokerElectionPriority": "2147483647",
    "registerBrokerTimeoutMills": "24000",
    "haAckAfter": "memory",
    "haSendAfter": "memory",
    "haDivergedPolicy": "refuse",
    "haForceMaster": "false",
    "haTlsEnable": "false",
}
"""Keys of RocketMQ's replication -> the default, of 5.5.0 unless ours differs by design."""


REFUSED = (
    *("duplicationEnable", "enableSlaveActingMaster", "enableRemoteEscape", "skipPreOnline"),
    "lockInStrictMode",
)
"""Keys whose default is the only value."""
WITHOUT_EFFECT = (
    *("totalReplicas", "syncMasterFlushOffsetWhenStartup", "maxChecksumRange"),
    *("maxSlaveResendLength", "disappearTimeAfterStart", "compatibleWithOldNameSrv"),
    *("brokerNotActiveTimeoutMillis", "sendHeartbeatTimeoutMillis", "syncBrokerMemberGroupPeriod"),
    *("forwardTimeout", "fetchControllerAddrByDnsLookup", "syncBrokerMetadataPeriod"),
    *("checkSyncStateSetPeriod", "syncControllerMetadataPeriod"),
)
EFFECTIVE = sorted(REPLICATION_KEYS.keys() - {*REFUSED, *WITHOUT_EFFECT})


def test_every_key_of_replication_is_reported() -> None:
    store = StoreConfig(store_path_root_dir="/s")
    live = LiveConfig(BrokerConfig(broker_ip2="10.0.0.8", listen_port=10911), store)
    reported = config.parse_properties(live.text())
    assert {key: reported.get(key) for key in REPLICATION_KEYS} == REPLICATION_KEYS
    assert reported["haListenPort"] == "10912"
    assert reported["storePathEpochFile"] == "/s/epochFileCheckpoint"
    assert reported["storePathBrokerIdentity"] == "/s/brokerIdentity"


def test_keys_of_replication_that_are_not_supported_are_refused() -> None:
    for key in REFUSED:
        with pytest.raises(InvalidOption, match=f"option '{key}' is 'true'; allowed: false: "):
            load({key: "true"})
        assert load({key: "false"}).warnings == ()


def test_keys_of_replication_without_effect_have_a_warning() -> None:
    for key in WITHOUT_EFFECT:
        with case(key):
            value = "true" if REPLICATION_KEYS.get(key) == "false" else "7"
            (warning,) = load({key: value}).warnings
            assert warning.startswith(f"{key} has no effect: ")


def test_keys_of_replication_with_an_effect_have_no_warning() -> None:
    others = {
        "haListenPort": "12345",
        "haMasterAddress": "10.0.0.8:10912",
        "controllerAddr": "10.0.0.9:9878;10.0.0.8:9878",
        "storePathEpochFile": "/e/epochs",
        "storePathBrokerIdentity": "/e/identity",
    }
    for key in (*EFFECTIVE, *others):
        with case(key):
            loaded = load({key: others.get(key) or REPLICATION_KEYS[key]})
            assert loaded.warnings == ()
            name = (BrokerConfig.keys.renamed | StoreConfig.keys.renamed).get(key, key)
            assert name in config.texts(loaded.broker) | config.texts(loaded.store)


def test_the_number_of_required_replicas_follows_the_role() -> None:
    store = StoreConfig(store_path_root_dir="/s", broker_role=BrokerRole.SYNC_MASTER)
    text = LiveConfig(BrokerConfig(), store).text()
    assert config.parse_properties(text)["inSyncReplicas"] == "2"


def test_clients_of_this_machine_may_change_the_role() -> None:
    live = LiveConfig(BrokerConfig(), StoreConfig(store_path_root_dir="/s"))
    changes = {"brokerRole": "SLAVE", "brokerId": "1"}
    live.check_remote(changes, may_change_role=True)
    with pytest.raises(RequestRefused, match="brokerId cannot be changed over the network"):
        live.check_remote(changes)
    with pytest.raises(RequestRefused, match="brokerName"):
        live.check_remote({"brokerName": "b"}, may_change_role=True)


async def ask_from(host: str, subject: Subject, text: str, signer: Signer | None = None) -> Command:
    """Change settings over a connection from an address of this machine."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.bind((host, 0))
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", subject.broker.identity.port))
        request = Command(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
        request = request if signer is None else signer.sign(request)
        await loop.sock_sendall(connection, commands.encode(request))
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            received = await loop.sock_recv(connection, 1 << 16)
            assert received, "the connection was closed"
            data += received
    return commands.decode(data[4:])


ROLES = ("brokerRole=SLAVE", "brokerId=1", "brokerRole=SLAVE\nbrokerId=1", "haForceMaster=true")


@pytest.mark.parametrize("text", ROLES)
async def test_a_client_elsewhere_cannot_change_the_role(
    started: Subject, conf: Path, text: str
) -> None:
    """A connection from another address than the broker's own is one of another machine."""
    before = text_of(conf)
    reply = await ask_from("127.0.0.2", started, text)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert "cannot be changed over the network (reputRemoteSettings=safe)" in (reply.remark or "")
    assert text_of(conf) == before
    assert started.broker.identity.is_master


async def test_only_the_mode_java_lets_clients_elsewhere_change_the_role(tmp_path: Path) -> None:
    for mode, host, is_changed in (
        (RemoteSettings.JAVA, "127.0.0.2", True),
        (RemoteSettings.SAFE, "127.0.0.1", True),
        (RemoteSettings.NONE, "127.0.0.1", False),
    ):
        root = tmp_path / str(mode)
        async with world.broker(root, reput_remote_settings=mode) as subject:
            reply = await ask_from(host, subject, "brokerRole=SLAVE\nbrokerId=1")
            assert (reply.code == ResponseCode.SUCCESS) is is_changed
            task = subject.broker._change_task
            assert (task is not None) is is_changed
            if task is not None:
                await task
            assert subject.broker.identity.is_master is not is_changed


async def test_a_super_user_elsewhere_may_change_the_role(tmp_path: Path) -> None:
    access = world.access_settings()
    async with world.broker(tmp_path, access=access, signer=world.signer()) as subject:
        rule = {"resource": "Cluster:DefaultCluster", "actions": ["Update"], "decision": "Allow"}
        policies = [{"policyType": "Custom", "entries": [rule]}]
        for code, fields, body in (
            (RequestCode.AUTH_CREATE_USER, {"username": "ann"}, {"password": "ann-pw"}),
            (RequestCode.AUTH_CREATE_ACL, {"subject": "User:ann"}, {"policies": policies}),
        ):
            request = Command(code, ext_fields=fields, body=json.dumps(fields | body).encode())
            assert (await subject.client.invoke(subject.address, request, 30_000)).code == 0
        ann, role = world.signer("ann", "ann-pw"), "brokerRole=SLAVE\nbrokerId=1"
        reply = await ask_from("127.0.0.2", subject, "fileReservedTime=24", ann)
        assert reply.code == ResponseCode.SUCCESS
        for signer in (None, ann, world.signer("root", "guessed")):
            reply = await ask_from("127.0.0.2", subject, role, signer)
            assert reply.code == ResponseCode.NO_PERMISSION
            if signer is ann:
                assert "or with access control as a super user" in (reply.remark or "")
            assert subject.broker.identity.is_master
        reply = await ask_from("127.0.0.2", subject, role, world.signer())
        assert (reply.remark or "").startswith("the role changes now to SLAVE with id 1; ")
        assert subject.broker._change_task is not None
        await subject.broker._change_task
        assert not subject.broker.identity.is_master


async def test_a_forced_change_is_forced_once(started: Subject, conf: Path) -> None:
    reply = await update(started, "haForceMaster=true")
    assert "together with another brokerRole, for that change only" in (reply.remark or "")
    reply = await update(started, "brokerRole=SLAVE\nbrokerId=1\nhaForceMaster=true")
    assert reply.code == ResponseCode.SUCCESS
    assert started.broker._change_task is not None
    await started.broker._change_task
    assert "brokerRole=SLAVE" in text_of(conf)
    assert "haForceMaster" not in text_of(conf)
    assert (await shown(started))["haForceMaster"] == "false"


async def test_a_role_is_changed_over_the_network(started: Subject, conf: Path) -> None:
    broker, address = started.broker, started.address
    reply = await update(started, "brokerRole=SLAVE\nbrokerId=7\n")
    assert reply.remark == "the role changes now to SLAVE with id 7"
    assert text_of(conf).endswith("brokerRole=SLAVE\nbrokerId=7\n")
    task = broker._change_task
    assert task is not None
    await task
    assert started.address == address
    assert "only its master writes here" in broker.store.refusal
    reply = await update(started, "brokerRole=SLAVE\nbrokerId=0\n")
    assert "because brokerRole is SLAVE" in (reply.remark or "")
    assert (await shown(started))["brokerId"] == "7"
    reply = await update(started, "brokerRole=SYNC_MASTER")
    assert reply.remark == "the role changes now to SYNC_MASTER with id 0"
    assert "brokerId=0\n" in text_of(conf)
