"""The same requests to this controller and, recorded, to Java's 5.5.0: equal answers."""

import json
from pathlib import Path
from typing import Any

import pytest

import controller_script
from controller_subject import ControllerSubject
from reput.format.codes import RequestCode
from reput.format.command import Command

DATA = Path(__file__).parents[2] / "data" / "controller"
RECORDED: dict[str, Any] = json.loads((DATA / "replies.json").read_text(encoding="utf-8"))
REQUESTS: list[dict[str, Any]] = json.loads((DATA / "requests.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.interop


async def test_equal_answers(tmp_path: Path) -> None:
    async with ControllerSubject(tmp_path) as subject:
        ours = await controller_script.play(subject.address)
    assert ours.keys() == RECORDED.keys()
    for name, answer in ours.items():
        assert answer == RECORDED[name], name


async def test_an_official_broker_forms_a_group(tmp_path: Path) -> None:
    async with ControllerSubject(tmp_path) as subject:
        replica = subject.replica(1)
        answers = {}
        for request in REQUESTS:
            sent = Command(
                request["code"], ext_fields=request["fields"], body=request["body"].encode()
            )
            answers[request["code"]] = await replica.ask(sent)
        assert [answer.code for answer in answers.values()] == [0] * len(REQUESTS)
        assert await subject.info() == ("1", 1, [1])
        assert answers[RequestCode.CONTROLLER_GET_REPLICA_INFO].body == {
            "syncStateSet": [1],
            "syncStateSetEpoch": 1,
        }
