"""Statuses: codes and texts of Java's proxy for errors and replies."""

import pytest

from reput.errors import (
    BrokerError,
    ConnectionLost,
    InvalidProtobuf,
    Overloaded,
    ReputError,
    RequestRefused,
    RequestTimedOut,
    broker_error,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.grpc import statuses
from reput.grpc.statuses import Code, StatusError


@pytest.mark.parametrize(
    ("response_code", "number"),
    [
        (1, 50001), (2, 42900), (3, 50100), (13, 50001), (14, 50001), (16, 50001), (17, 40402),
        (26, 40403), (209, 42900), (215, 42900), (2017, 42901), (2018, 42902),
        (777, 50001),
    ],
)  # fmt: skip
def test_response_codes_have_numbers(response_code: int, number: int) -> None:
    expected = {"code": number, "message": "why"}
    assert statuses.of_reply(Command(response_code, remark="why")) == expected
    assert statuses.of_error(RequestRefused(response_code, "why")) == expected
    assert statuses.of_error(BrokerError(response_code, "why", "host:1")) == expected
    with pytest.raises(StatusError, match="why") as caught:
        statuses.check(Command(response_code, remark="why"))
    assert statuses.of_error(caught.value) == expected


@pytest.mark.parametrize("remark", ["why", "parse the consumer's subscription failed"])
def test_a_filter_that_a_broker_cannot_parse_has_the_text_of_java(remark: str) -> None:
    status = statuses.of_error(BrokerError(23, remark, "host:1"))
    assert status["code"] == 40010
    assert status["message"].startswith("parse the consumer's subscription failed")
    assert status["message"].endswith(remark)


def test_reply_without_remark_has_its_code_as_text() -> None:
    assert statuses.of_reply(Command(1)) == {"code": 50001, "message": "1"}


@pytest.mark.parametrize(
    ("response_code", "number", "name"),
    [
        (10, 50401, "FLUSH_DISK_TIMEOUT"),
        (11, 50002, "SLAVE_NOT_AVAILABLE"),
        (12, 50402, "FLUSH_SLAVE_TIMEOUT"),
    ],
)
def test_stored_message_has_a_status(response_code: int, number: int, name: str) -> None:
    text = f"send message failed, sendStatus={name}"
    assert statuses.of_reply(Command(response_code)) == {"code": number, "message": text}
    assert response_code in statuses.STORED


def test_success() -> None:
    assert statuses.of_reply(Command(0)) == {"code": 20000, "message": "OK"}
    statuses.check(Command(0), of_receipt=True)


@pytest.mark.parametrize("code", [ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL])
def test_handle_that_no_message_is_held_by_is_invalid(code: int) -> None:
    with pytest.raises(StatusError) as caught:
        statuses.check(Command(code), of_receipt=True)
    assert caught.value.code == Code.INVALID_RECEIPT_HANDLE == 40013


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (RequestTimedOut("host:1", 10, 3000), 50400),
        (Overloaded("full"), 42900),
        (ConnectionLost("host:1", "reset"), 50001),
        (InvalidProtobuf("Status: code is cut off"), 40000),
        (broker_error(16, "User:bob has no permission to access Topic:T"), 40100),
        (ReputError("other"), 50001),
    ],
)
def test_errors_have_numbers(error: ReputError, number: int) -> None:
    assert statuses.of_error(error)["code"] == number


def test_bug_has_no_details() -> None:
    status = statuses.of_error(KeyError("secret"))
    assert status == {"code": 50001, "message": "internal server error"}


def test_entries_have_a_common_status() -> None:
    ok, bad = {"status": statuses.OK}, {"status": {"code": 40013, "message": "expired"}}
    assert statuses.of_entries([ok, ok]) == {"code": 20000, "message": "OK"}
    assert statuses.of_entries([bad]) == {"code": 40013, "message": "INVALID_RECEIPT_HANDLE"}
    assert statuses.of_entries([ok, bad]) == {"code": 30000, "message": "MULTIPLE_RESULTS"}
    assert statuses.of_entries([])["code"] == 50001
