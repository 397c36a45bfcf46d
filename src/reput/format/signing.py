"""Signatures of requests: access control 1.0 and 2.0 of RocketMQ 4.4 and later.

A client adds ``AccessKey``, ``SecurityToken`` if it has one, and ``Signature``: the base64 of the
HMAC-SHA1, with the secret key, of the values of all other fields in the order of their names,
followed by the body. Code, opaque, flags and remark are not signed, and there is neither time nor
nonce: a copy of a signed request is accepted as well.
Source: rocketmq 4.9.7 ``AclClientRPCHook``, ``AclUtils``, ``AclSigner``; 5.5.0 has the same.
"""

import base64
import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from reput.errors import InvalidOption
from reput.format import java
from reput.format.codes import RequestCode
from reput.format.command import Buffer, Command
from reput.secret import NO_SECRET, Secret

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
SIGNATURE_BYTES = 28
"""Size of a signature as text, in bytes: base64 of 20 bytes."""
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"

_BLOCK_BYTES = 64
_INNER = bytes(value ^ 0x36 for value in range(256))
_OUTER = bytes(value ^ 0x5C for value in range(256))
_VERSION_4_9_3 = 399


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials with which a client signs its requests."""

    access_key: str
    """Name of the account or user."""
    secret_key: Secret
    security_token: Secret = NO_SECRET
    """Token of a temporary account; none if empty."""

    def __post_init__(self) -> None:
        """Validate that both keys are given.

        Raises:
            InvalidOption: One is empty. The error has no secret.
        """
        if not self.access_key:
            name = "secretKey" if self.secret_key else "securityToken"
            raise InvalidOption(name, NO_SECRET, "left out, unless accessKey is given as well")
        if not self.secret_key:
            raise InvalidOption("accessKey", self.access_key, "given together with a secretKey")


def credentials_of(
    access_key: str, secret_key: Secret, security_token: Secret
) -> Credentials | None:
    """Return the credentials of options; None if all are empty.

    Raises:
        InvalidOption: As ``Credentials``.
    """
    if not (access_key or secret_key or security_token):
        return None
    return Credentials(access_key, secret_key, security_token)


def content(fields: Mapping[str, str], body: Buffer) -> bytes:
    """Return the signed bytes of a request.

    Args:
        fields: Its extFields; ``Signature`` is left out.
        body: Its body.
    """
    names = sorted(fields)
    if not "".join(names).isascii():
        names.sort(key=_code_units)
    text = "".join([fields[name] for name in names if name != SIGNATURE])
    return java.encode_utf8(text) + body


def _code_units(name: str) -> bytes:
    """Return the sort key of Java's string order: code units, not characters."""
    return name.encode("utf-16-be", "surrogatepass")


def key_pads(secret_key: Secret) -> tuple[bytes, bytes]:
    """Return the first blocks of the inner and the outer hash of an HMAC."""
    key = java.encode_utf8(secret_key.reveal())
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha1(key, usedforsecurity=False).digest()
    key = key.ljust(_BLOCK_BYTES, b"\0")
    return key.translate(_INNER), key.translate(_OUTER)


class Signer:
    """Signs requests. The HMAC of the secret key is prepared once.

    Args:
        credentials: Keys of the client.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._added = {ACCESS_KEY: credentials.access_key}
        if credentials.security_token:
            self._added[SECURITY_TOKEN] = credentials.security_token.reveal()
        inner, outer = key_pads(credentials.secret_key)
        self._inner = hashlib.sha1(inner, usedforsecurity=False)
        self._outer = hashlib.sha1(outer, usedforsecurity=False)

    def sign(self, request: Command) -> Command:
        """Return a signed copy of a request; signing it again gives the same.

        The request itself stays as it is, so that no token is in what callers keep or log.
        """
        fields = {**(request.ext_fields or {}), **self._added}
        signed = fields
        version = request.version
        if request.code == RequestCode.QUERY_MESSAGE and UNIQUE_KEY_QUERY in fields:
            # Brokers disagree: 4.9.7 never counts this field, 5.x only if the version of the
            # request is above 4.9.3.
            version = min(version, _VERSION_4_9_3)
            signed = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
        fields[SIGNATURE] = self.signature(content(signed, request.body))
        return dataclasses.replace(request, ext_fields=fields, version=version)

    def signature(self, data: bytes) -> str:
        """Return the signature of the bytes that ``content`` returns."""
        return base64.b64encode(self.digest(data)).decode("ascii")

    def digest(self, data: bytes) -> bytes:
        """Return the HMAC-SHA1 of bytes."""
        inner = self._inner.copy()
        inner.update(data)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()
