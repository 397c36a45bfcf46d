"""Our brokers in groups with official ones, under our controller and the official one.

Each dies as master, the other one takes over, and it returns as a slave: nothing acknowledged is
lost, and the logs are equal.
"""

import contextlib
import json
import re
from pathlib import Path

import pytest

from interop.java_cluster import JavaClient, JavaMessage
from interop.pairs import asked, assert_same_logs, log_end
from interop.record_controller import DATA, mqadmin_texts
from interop.replica_group import NAME, VERSION, Group, JavaController, group, until
from interop.test_controller import REPAIRED, controller, namesrv
from reput.format.codes import RequestCode

pytestmark = [pytest.mark.interop, pytest.mark.rotating]
__all__ = ["controller", "namesrv"]  # fixtures

OFFSETS = re.compile(r"(Offset=)(?!0\b|9223372036854775807)\d+")
"""Physical offsets, which depend on the properties that a broker adds to a message."""


def info(made: Group) -> dict[str, object]:
    """Return what the controller knows about the group."""
    body, code = json.dumps([NAME]).encode(), RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    reply = asked(made.controller, lambda remote: remote.ask(code, body=body))
    table = json.loads(reply.body)["replicasInfoTable"] if reply.body else {}
    replicas = table.get(NAME, {})
    assert isinstance(replicas, dict)
    return replicas


def await_group(made: Group, count: int, master: str = "") -> None:
    """Wait until some replicas are in sync, and perhaps one of them is master."""

    def is_so() -> bool:
        replicas = info(made)
        in_sync = replicas.get("inSyncReplicas", [])
        assert isinstance(in_sync, list)
        return len(in_sync) == count and master in ("", replicas.get("masterAddress"))

    until(is_so, f"{count} in sync, master {master or 'any'}")


def check_takeovers(made: Group, java: JavaClient) -> None:
    """Let each of two brokers die as master, and return."""
    first, second = made.add(), made.add()
    await_group(made, 2, first.address)
    producer = java.producer(made.namesrv)
    acknowledged: list[bytes] = []

    def is_sent(body: bytes) -> bool:
        with contextlib.suppress(Exception):
            return producer.send([JavaMessage("T", body)])[0].status == "SEND_OK"
        return False

    def send(word: str, count: int = 50) -> None:
        for number in range(count):
            body = f"{word} {number}".encode()
            until(lambda body=body: is_sent(body), f"a send {word}")
            acknowledged.append(body)

    send("before")
    for dying, other in ((first, second), (second, first)):
        dying.kill_broker()
        await_group(made, 1, other.address)
        send(f"without {dying.address}")
        dying.start()
        await_group(made, 2, other.address)
        send("again together")
        end = log_end(other.address)
        until(lambda dying=dying, end=end: log_end(dying.address) == end, "both have all")
        assert_same_logs(other.store, dying.store, end)
    log = b"".join(
        file.read_bytes() for file in sorted((first.store / "commitlog").glob("[0-9]" * 20))
    )
    assert [body for body in acknowledged if body not in log] == []
    files = [
        [(broker.store / name).read_text() for broker in (first, second)]
        for name in ("epochFileCheckpoint", "brokerIdentity")
    ]
    epochs, identities = files
    assert epochs[0] == epochs[1]
    assert epochs[0].split("\n")[0] == "3"  # one for each master
    assert identities == [f"DefaultCluster#{NAME}#1", f"DefaultCluster#{NAME}#2"]


def test_takeovers_under_our_controller(tmp_path: Path, namesrv: str, controller: str) -> None:
    with (
        group(tmp_path / "group", namesrv, controller) as made,
        JavaClient(VERSION, tmp_path / "client") as java,
    ):
        made.kinds = {1: "ours", 2: VERSION}
        check_takeovers(made, java)


def test_takeovers_under_the_official_controller(tmp_path: Path, namesrv: str) -> None:
    with (
        JavaController(tmp_path / "controller") as official,
        group(tmp_path / "group", namesrv, official.address) as made,
        JavaClient(VERSION, tmp_path / "client") as java,
    ):
        made.kinds = {1: VERSION, 2: "ours"}
        check_takeovers(made, java)


def test_mqadmin_prints_the_same_of_our_brokers(
    tmp_path: Path, namesrv: str, controller: str
) -> None:
    """As of official brokers under the official controller, which was recorded."""
    recorded: dict[str, str] = json.loads((DATA / "mqadmin.json").read_text(encoding="utf-8"))
    with (
        group(tmp_path / "group", namesrv, controller) as made,
        JavaClient(VERSION, tmp_path / "client") as java,
    ):
        made.kinds = {1: "ours", 2: "ours"}
        texts = mqadmin_texts(java, made, controller)

    def masked(of: dict[str, str]) -> dict[str, str]:
        compared = of.keys() - REPAIRED - {"config"}
        return {name: OFFSETS.sub(r"\1N", of[name]) for name in sorted(compared)}

    assert masked(texts) == masked(recorded)
