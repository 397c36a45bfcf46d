"""Signatures of requests. The signatures are what 5.5.0's ``AclClientRPCHook`` made."""

import base64
import hashlib
import hmac

import pytest

from reput.errors import InvalidOption
from reput.format import command
from reput.format.command import Command, Serialization
from reput.format.signing import Credentials, Signer, content, credentials_of
from reput.secret import Secret

SEND = {"a": "g", "b": "Orders", "g": "1700000000000", "i": 'UNIQ_KEY\x010A\x02k\x01"\\\n\x02'}


@pytest.mark.parametrize(
    ("credentials", "request_", "signature"),
    [
        pytest.param(
            Credentials("rocketmq2", Secret("12345678")),
            Command(310, ext_fields=SEND, body=b"body \x00\xff"),
            "NLvGjWych3OXP4GNbt5Ds48yoXI=",
            id="escapes",
        ),
        pytest.param(
            Credentials("AK", Secret("schlüssel"), Secret("token")),
            Command(34, body=b"{}"),
            "AtWd+mQQaFJivgRBAu0mescu9R0=",
            id="no fields, token, not ASCII",
        ),
        pytest.param(
            Credentials("AK", Secret("x" * 65)),
            Command(11, ext_fields={"topic": "é\U0001f600", "Topic": "", "_x": "u", "a": "l"}),
            "RM2uxf4gFKd+jepG0KTMCoWXPu0=",
            id="order, empty value, key longer than a block",
        ),
    ],
)
def test_signatures_of_java(credentials: Credentials, request_: Command, signature: str) -> None:
    signed = Signer(credentials).sign(request_)
    fields = {**(request_.ext_fields or {}), "AccessKey": credentials.access_key}
    if credentials.security_token:
        fields["SecurityToken"] = "token"
    assert signed.ext_fields == {**fields, "Signature": signature}


@pytest.mark.parametrize("serialization", Serialization)
def test_a_decoded_request_has_the_signed_content(serialization: Serialization) -> None:
    fields = {**SEND, "empty": "", "é": "\U0001f600", "Z": "%41"}
    signer = Signer(Credentials("AK", Secret("secret")))
    request = Command(310, ext_fields=fields, body=b"\0", serialization=serialization)
    frame = command.encode(signer.sign(request))
    received = command.decode(frame[command.LENGTH.size :])
    assert received.ext_fields is not None
    data = content(received.ext_fields, received.body)
    expected = base64.b64encode(hmac.digest(b"secret", data, hashlib.sha1)).decode()
    assert received.ext_fields["Signature"] == expected


def test_signing_leaves_the_request_and_may_be_repeated() -> None:
    signer = Signer(Credentials("AK", Secret("secret"), Secret("token")))
    request = Command(11, 7, 2, ext_fields={"topic": "T"}, body=b"b", remark="r")
    signed = signer.sign(request)
    assert request == Command(11, 7, 2, ext_fields={"topic": "T"}, body=b"b", remark="r")
    assert signer.sign(signed) == signed
    signed.ext_fields = request.ext_fields
    assert signed == request


def test_a_query_by_unique_key_is_signed_so_that_all_brokers_accept_it() -> None:
    """4.9.7 never counts the field, 5.x only from requests of versions above 4.9.3."""
    signer = Signer(Credentials("AK", Secret("secret")))
    fields = {"topic": "T", "key": "K"}
    signed = signer.sign(Command(12, ext_fields={**fields, "_UNIQUE_KEY_QUERY": "true"}))
    plain = signer.sign(Command(12, ext_fields=fields))
    assert signed.ext_fields is not None
    assert plain.ext_fields is not None
    assert signed.ext_fields["Signature"] == plain.ext_fields["Signature"]
    assert signed.ext_fields["_UNIQUE_KEY_QUERY"] == "true"
    assert (signed.version, plain.version) == (399, 407)


def test_both_keys_are_needed_and_no_error_shows_them() -> None:
    secret, none = Secret("hunter2"), Secret()
    assert credentials_of("", none, none) is None
    assert credentials_of("AK", secret, none) == Credentials("AK", secret)
    for given in (("", secret, none), ("", none, secret), ("AK", none, none), ("AK", none, secret)):
        with pytest.raises(InvalidOption) as caught:
            credentials_of(*given)
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(caught.value)
    assert "hunter2" not in repr(Credentials("AK", secret, secret))
