"""Members of a broker name, and notices to them: recorded from Java's name server 5.5.0."""

import json
from pathlib import Path
from typing import Any

import pytest

import member_script
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.member_notices import MemberNotices
from reput.namesrv.route_table import MembersChange
from reput.namesrv.server import NameServer

FILE = Path(__file__).parents[2] / "data" / "namesrv" / "members.json"
RECORDED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def config(folder: Path, *, is_notifying: bool) -> NamesrvConfig:
    return NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(folder / "kvConfig.json"),
        config_store_path=str(folder / "namesrv.properties"),
        notify_min_broker_id_changed=is_notifying,
    )


@pytest.mark.interop
async def test_replies_and_notices_are_those_of_java(tmp_path: Path) -> None:
    async with NameServer(config(tmp_path, is_notifying=True)) as server:
        assert await member_script.play(f"127.0.0.1:{server.port}", RECORDED) == RECORDED


async def test_by_default_no_broker_is_notified(tmp_path: Path) -> None:
    silent = {name: {"notices": []} for name in RECORDED}
    async with NameServer(config(tmp_path, is_notifying=False)) as server:
        answers = await member_script.play(f"127.0.0.1:{server.port}", silent)
        assert not server._notices._tasks
    assert not any(answer["notices"] for answer in answers.values())


async def test_only_a_group_with_an_acting_master_learns_that_a_broker_is_gone() -> None:
    notices = MemberNotices(None, lambda: True)
    gone = MembersChange("a", {1: "127.0.0.1:1"}, enable_acting_master=False, offline_address="h:1")
    notices.send(gone)
    assert not notices._tasks
    await notices.close()


async def test_a_broker_that_cannot_be_reached_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notices = MemberNotices(None, lambda: True)
    notices.send(MembersChange("a", {0: "127.0.0.1:1"}, enable_acting_master=True))
    for task in set(notices._tasks):
        await task
    await notices.close()
    assert "'127.0.0.1:1' was not notified" in caplog.text
