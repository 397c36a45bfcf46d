"""Codes 3001 to 3010, and refusals: the replies of Java 5.5.0 to the same requests.

``tests/data/access/README.md`` says how they were recorded.
"""

import json
from pathlib import Path

import access_script
import world
from interop import secured_cluster
from reput.broker.settings import config


async def test_replies_are_those_of_java(tmp_path: Path) -> None:
    texts = {key: _text(value) for key, value in secured_cluster.SETTINGS["5.5.0"].items()}
    access = config.load(texts).access
    async with world.broker(tmp_path, access=access) as subject:
        ours = access_script.as_json(await access_script.replies(subject.address))
    recorded = json.loads(access_script.RECORDED.read_text())
    for mine, theirs in zip(json.loads(json.dumps(ours)), recorded, strict=True):
        assert mine == theirs


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
