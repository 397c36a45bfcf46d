"""``reput cluster`` against a broker, and errors of all commands without a server."""

import pytest

import ports
import reput
from reput.cli import cluster, exit_codes, main as cli
from reput.cli.connecting import version_text
from reput.testing.local_broker import LocalBroker
from wire_command import Command


def test_show_names_brokers_with_their_addresses(command: Command, rocketmq: LocalBroker) -> None:
    result = command.json("cluster", "show")
    assert result["name_servers"] == [rocketmq.namesrv_addr]
    assert result["clusters"] == [
        {
            "cluster": "DefaultCluster",
            "brokers": [{"broker_name": "broker-a", "addresses": {"0": rocketmq.broker_addr}}],
        }
    ]
    assert rocketmq.broker_addr in command("cluster", "show")


def test_brokers_have_version_rates_and_disk(command: Command) -> None:
    (result,) = command.json("cluster", "brokers")["brokers"]
    assert (result["broker_name"], result["version"], result["problem"]) == (
        "broker-a",
        "4.9.7",
        None,
    )
    assert result["reput_version"] == reput.__version__
    assert 0 <= result["disk_ratio"] <= 1
    assert result["put_latency_99_ms"] >= 0
    assert "broker-a" in command("cluster", "brokers")
    status = command.json("cluster", "brokers", "broker-a")["status"]
    assert status["brokerVersionDesc"] == "V4_9_7"


@pytest.mark.rocketmq(fileReservedTime=72)
def test_settings_are_shown_and_changed(command: Command) -> None:
    get = ("cluster", "config", "get")
    assert command.json(*get, "fileReservedTime") == {
        "of": "broker-a",
        "settings": {"fileReservedTime": "72"},
    }
    changed = command.json("cluster", "config", "set", "fileReservedTime=48")
    (setting,) = changed["settings"]
    assert (setting["key"], setting["before"], setting["after"]) == ("fileReservedTime", "72", "48")
    assert "48" in command(*get, "fileReservedTime", "--broker", "broker-a")
    assert "listenPort" in command(*get, "--name-servers")


def test_settings_that_are_not_in_force_or_not_kept_are_named(command: Command) -> None:
    change = ("cluster", "config", "set", "flushDiskType=SYNC_FLUSH", "fileReservedTime=24")
    for _ in range(2):  # the second change has the same note, although it changes nothing
        result = command.json(*change)
        assert {setting["key"]: setting["in_force"] for setting in result["settings"]} == {
            "flushDiskType": "never",  # the broker has no broker.conf
            "fileReservedTime": "now, lost at a restart",
        }
        assert "in force after a restart: flushDiskType" in command.notes
        assert "not written: the broker was started without a broker.conf" in command.notes
    assert "never" in command(*change)


@pytest.mark.parametrize(
    ("note", "in_force"),
    [
        ("", "now"),
        ("in force after a restart: flushDiskType", "after a restart"),
        ("in force after a restart: deleteWhen, flushDiskType", "after a restart"),
        ("in force after a restart: deleteWhen; not written: no file", "now, lost at a restart"),
    ],
)
def test_when_a_setting_is_in_force(note: str, in_force: str) -> None:
    assert cluster._in_force("flushDiskType", note) == in_force


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["config", "get", "nonsense"], "'nonsense'"),
        (["config", "set", "nonsense"], "NAME=VALUE"),
        (["config", "get", "--broker", "x"], "allowed: broker-a"),
        (["brokers", "x"], "allowed: broker-a"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint("cluster", *arguments)


# --- unreachable servers ------------------------------------------------------------------------


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "send", "T", "x"],
        ["group", "show", "G"],
        ["cluster", "show"],
        ["message", "tail", "T"],
        ["offset", "show", "G", "T"],
        ["consumer", "consume", "T", "--group", "G"],
        ["bench", "produce", "T"],
    ],
)
def test_an_unreachable_server_is_an_error_with_a_remedy(
    capsys: pytest.CaptureFixture[str], free_port: int, arguments: list[str]
) -> None:
    address = f"127.0.0.1:{free_port}"
    assert cli.run([*arguments, "-n", address]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"reput: cannot reach name server {address}: ")
    assert "`reput up` starts one" in err
    assert err.count("\n") == 1, err


def test_the_name_server_comes_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:{free_port}")
    assert cli.run(["topic", "list"]) == 2
    assert f"127.0.0.1:{free_port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "text"),  # ordinals of rocketmq 5.5.0 MQVersion
    [
        (212, "4.0.0-SNAPSHOT"),
        (213, "4.0.0"),
        (407, "4.9.7"),
        (413, "5.0.0"),
        (513, "5.5.0"),
        (211, "211"),
        (612, "612"),
    ],
)
def test_versions(number: int, text: str) -> None:
    assert version_text(number) == text


def test_the_port_of_a_broker_is_no_name_server(
    rocketmq: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["topic", "list"], ["cluster", "show"]):
        assert cli.run([*command, "-n", rocketmq.broker_addr]) == exit_codes.EXIT_ERROR
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"reput: {rocketmq.broker_addr} answers code 3: ")
        assert "it may be a broker: name servers listen at port 9876 by default" in line
