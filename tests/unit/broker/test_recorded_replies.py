"""Replies beside those of RocketMQ to the same requests: codes, texts, header fields and bodies.

``tests/data/replies/README.md`` describes the table. Each test runs with the fast path, and
without.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import recorded_replies as recorded
import world
from recorded_replies import Reply

ROWS = recorded.rows()
PROTOCOL = Path(__file__).parents[3] / "docs/reference/protocol.md"
NOT_SUPPORTED = 3

UNSET = ("not set any response code", "")
"""Remarks of Java that stand for none."""
FAQ = "\nSee http"
"""Begin of the link that follows Java's texts."""

MASKED_FIELDS = {
    # A reply without a total has everything: this broker does not divide its lists.
    21: {"totalTopicNum"}, 201: {"totalGroupNum"},
    # The progress of the timer, for admin tools of reput.
    60: {"leavesMs", "oldest", "queueOffset", "takenUp"},
}  # fmt: skip
"""Fields of a request's reply that only one side has."""
ONLY_ACCEPTED = range(200_050, 200_071)
"""Pops and acks: Java gives a refusal the fields of a success, with 0."""

MASKED_BODIES = {("consumer offsets", ".lmqOffsetTable is missing")}
"""Differences of bodies: offsets of light queues are in offsetTable."""

Replies = dict[str, dict[str, Reply | None]]


@pytest.fixture(scope="module", params=["fast-path", "no-fast-path"])
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Replies:
    """Return our replies, by version of the client and name of the request."""

    async def ask(folder: Path, version: str) -> dict[str, Reply | None]:
        async with world.name_server(folder) as server:
            namesrv = world.address_of(server)
            async with world.broker(
                folder / "store",
                store=dict.fromkeys(("enable_lmq", "enable_multi_dispatch"), True),
                namesrv_addr=namesrv,
                reput_fast_path=request.param == "fast-path",
                auto_create_topic_enable=False,
                auto_create_subscription_group=False,
                enable_property_filter=True,
            ) as subject:
                return await recorded.ask_all(subject.address, namesrv, version)

    return {
        version: asyncio.run(ask(tmp_path_factory.mktemp("replies"), version))
        for version in recorded.VERSIONS
    }


def expected(row: dict[str, Any], version: str) -> dict[str, Any] | None:
    """Return Java's reply; None if Java does not answer, or this broker differs on purpose."""
    reply: dict[str, Any] | None = row[version]
    if version in row.get("ours", {}) or reply is None:
        return None
    is_newer = version == "4.9.7" and reply["code"] == NOT_SUPPORTED and row["code"] != 9999
    return None if is_newer else reply


def test_codes_are_those_of_java(ours: Replies) -> None:
    """A client of 4.9 gets the codes of 4.9.7, a client of 5.x those of 5.5.0."""
    wrong = []
    for row in ROWS:
        for version in recorded.VERSIONS:
            theirs, mine = expected(row, version), ours[version][row["name"]]
            if theirs is not None and (mine is None or mine.code != theirs["code"]):
                wrong.append((row["name"], version, theirs["code"], theirs["remark"], mine))
    assert not wrong


def test_texts_contain_those_of_java(ours: Replies) -> None:
    """Programs look for RocketMQ's words in a remark."""
    wrong = []
    for row in ROWS:
        theirs, mine = expected(row, "5.5.0"), ours["5.5.0"][row["name"]]
        if theirs is None or theirs["remark"] in (None, *UNSET):
            continue
        whole = theirs["remark"].partition(FAQ)[0].strip(" ,")
        text = row.get("text", whole)
        assert text in whole, row["name"]
        if mine is None or text not in (mine.remark or ""):
            wrong.append((row["name"], text, mine))
    assert not wrong


def test_replies_that_differ_on_purpose(ours: Replies) -> None:
    wrong = []
    for row in ROWS:
        for version, wanted in row.get("ours", {}).items():
            mine = ours[version][row["name"]]
            assert mine is not None, row["name"]
            if (mine.code, mine.remark) != (wanted["code"], wanted["remark"]):
                wrong.append((row["name"], version, wanted, mine))
            theirs = row[version]
            assert theirs is None or theirs["code"] != mine.code, f"{row['name']}: not different"
    assert not wrong


def test_differences_on_purpose_are_documented() -> None:
    section = PROTOCOL.read_text().partition("\n## Answers other than RocketMQ's\n")[2]
    section = section.partition("\n## ")[0]
    documented = {
        int(code)
        for line in section.splitlines()
        if line.startswith("| ")
        for code in _codes(line.split("|")[1])
    }
    assert {row["code"] for row in ROWS if "ours" in row} <= documented


def _codes(cell: str) -> Iterator[int]:
    """Yield the codes of a cell: ``200050, 3001 to 3010``."""
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", cell):
        yield from range(int(first), int(last or first) + 1)


def test_header_fields_are_those_of_java(ours: Replies) -> None:
    wrong = []
    for row in ROWS:
        theirs, mine = expected(row, "5.5.0"), ours["5.5.0"][row["name"]]
        if theirs is None or mine is None or (mine.code and row["code"] in ONLY_ACCEPTED):
            continue
        different = set(mine.fields).symmetric_difference(theirs["fields"])
        if different - MASKED_FIELDS.get(row["code"], set()):
            wrong.append((row["name"], different))
    assert not wrong


def test_bodies_have_the_fields_of_java(ours: Replies) -> None:
    """Clients in typed languages refuse a body without a field that they know."""
    wrong = []
    for row in ROWS:
        theirs, mine = expected(row, "5.5.0"), ours["5.5.0"][row["name"]]
        if theirs is None or mine is None:
            continue
        if (theirs["body"] is None) != (mine.body is None):
            wrong.append((row["name"], f"{theirs['body']} and {mine.body}"))
        elif theirs["body"] is not None:
            wrong += [
                (row["name"], text) for text in recorded.differences([theirs["body"]], [mine.body])
            ]
    assert not set(wrong) - MASKED_BODIES
