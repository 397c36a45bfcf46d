"""A broker with access control 2.0 and a super user, for tests of clients and commands."""

import contextlib
import json
import os
from collections.abc import Iterator

import pytest

from reput.client.config import ClientConfig
from reput.secret import Secret
from reput.testing.local_broker import LocalBroker

ROOT, ROOT_PASSWORD = "root", "word of root"
"""Name and password of the super user."""
_TIMEOUT_MS = 30_000


@contextlib.contextmanager
def access_broker(*topics: str, **settings: str) -> Iterator[LocalBroker]:
    """Run a broker with some topics; its changes of users do not wait for a disk."""
    known = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": ROOT, "password": ROOT_PASSWORD}),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        with LocalBroker(topics=topics, settings={**known, **settings}) as running:
            yield running


def client_of(broker: LocalBroker, user: str, password: str) -> ClientConfig:
    """Return the settings of clients of a user."""
    return ClientConfig(
        namesrv_addr=broker.namesrv_addr,
        access_key=user,
        secret_key=Secret(password),
        request_timeout_ms=_TIMEOUT_MS,
    )
