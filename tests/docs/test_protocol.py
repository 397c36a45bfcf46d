"""The table of requests lists the requests that servers and clients serve."""

import re
from pathlib import Path

from reput.broker.processors.table import PROCESSORS as BROKER
from reput.controller.processors import PROCESSORS as CONTROLLER
from reput.format import codes, command
from reput.format.codes import RequestCode
from reput.namesrv.processors import PROCESSORS as NAME_SERVER

PAGE = (Path(__file__).parents[2] / "docs/reference/protocol.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \| `(\w+)` \| ([a-z, ]+) \| (.+) \|$", re.MULTILINE)
TO_CLIENTS = {39, 40, 220, 221, 307, 309, 326, 200073}


def test_every_request_is_in_the_table_and_nothing_else() -> None:
    served = {}
    for code, name, by, what in ROW.findall(PAGE):
        assert RequestCode(int(code)).name == name
        assert what
        served[int(code)] = set(by.split(", "))
    assert {code for code, by in served.items() if "broker" in by} == set(map(int, BROKER))
    assert {code for code, by in served.items() if "name server" in by} == set(
        map(int, NAME_SERVER)
    )
    assert {code for code, by in served.items() if "controller" in by} == set(map(int, CONTROLLER))
    assert {code for code, by in served.items() if "clients" in by} == TO_CLIENTS


def test_requests_that_are_not_served_are_named() -> None:
    known = {int(code) for code in RequestCode}
    named = {int(code) for code in re.findall(r"`\w+` \((\d+)\)", PAGE)} & known
    unserved = known - {*map(int, (*BROKER, *NAME_SERVER, *CONTROLLER)), *TO_CLIENTS}
    assert named - {int(codes.ResponseCode.REQUEST_CODE_NOT_SUPPORTED), 1} == unserved


def test_the_limit_of_a_frame() -> None:
    assert f"{command.FRAME_BYTES_MAX:,}" in PAGE
