"""Requests with mistakes get the codes and the words of rocketmq-proxy 5.5.0.

The file has its reply to each (``grpc_requests``). Ours has the same code, and contains its text
without the names of classes and the links to documents; or the file says what ours has instead, and
why. Those differences are listed in docs/reference/protocol.md.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import grpc_requests
from grpc_requests import RequestClient
from proxied_broker import ProxiedBroker
from reput.testing import LocalBroker

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"
CASES = grpc_requests.cases()
_BEFORE = re.compile(r"\A(?:[\w.$]+Exception: |CODE: \d+  DESC: )+")
_AFTER = re.compile(r"(?:\. \w+Exception\. [\w.$]+\(.*\)|\n.*)\Z", re.DOTALL)


@pytest.fixture(scope="module", params=[LocalBroker, ProxiedBroker], ids=["broker", "proxy"])
def request_client(request: pytest.FixtureRequest) -> Iterator[RequestClient]:
    with request.param(settings={"enableMixedMessageType": "true"}) as broker:
        grpc_requests.prepare(broker.namesrv_addr)
        with RequestClient(broker.grpc_endpoint) as request_client:
            yield request_client


def text_of(java: str) -> str:
    """Return the text of a reply without classes and links."""
    return _AFTER.sub("", _BEFORE.sub("", java))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_reply_is_that_of_java_or_a_known_other_one(
    request_client: RequestClient, case: dict[str, Any]
) -> None:
    ours = request_client.ask(case)
    expected = case.get("ours") or {**case["java"], "message": text_of(case["java"]["message"])}
    assert ours["code"] == expected["code"], ours["message"]
    assert expected["message"] in ours["message"]


@pytest.mark.parametrize("why", sorted({case["ours"]["why"] for case in CASES if "ours" in case}))
def test_a_difference_is_documented(why: str) -> None:
    assert why in " ".join(PAGE.read_text(encoding="utf-8").split())
