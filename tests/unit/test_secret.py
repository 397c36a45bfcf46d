"""A secret is never shown, and survives what happens to settings."""

import copy
import dataclasses
import json
import pickle
from dataclasses import dataclass

import msgspec
import pytest

from reput.secret import Secret


@dataclass(frozen=True)
class Settings:
    key: Secret


def test_no_text_of_it_has_the_secret() -> None:
    secret = Secret("hunter2")
    settings = Settings(Secret("hunter2"))
    texts = [str(secret), repr(secret), f"{secret}", f"{secret!r:>20}", f"{secret!s}"]
    texts += [repr(settings), str([secret]), str(dataclasses.asdict(settings))]
    texts += [repr(ValueError(secret)), str(ValueError(secret))]
    assert all("hunter2" not in text and "***" in text for text in texts)
    assert repr(Secret()) == repr(secret)


def test_it_cannot_be_written_as_json() -> None:
    with pytest.raises(TypeError):
        json.dumps({"key": Secret("hunter2")})
    with pytest.raises(TypeError):
        msgspec.json.encode({"key": Secret("hunter2")})


def test_copies_and_workers_get_the_text() -> None:
    settings = Settings(Secret("hunter2"))
    for same in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))):
        assert same == settings
        assert hash(same) == hash(settings)
        assert same.key.reveal() == "hunter2"
    assert Secret(Secret("hunter2")).reveal() == "hunter2"
    assert Secret("hunter2") != "hunter2"
    assert not Secret()
