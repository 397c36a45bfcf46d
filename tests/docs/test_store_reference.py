"""The reference page of the store's options agrees with the code."""

import dataclasses
import re
from pathlib import Path

from reput import config
from reput.store.config import ACCEPTED_WITHOUT_EFFECT, ONLY, StoreConfig

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "store-options.md").read_text()
OPTIONS, _, REST = PAGE.partition("## Other names")
RENAMED, _, REST = REST.partition("## What must stay as it is")
FIXED, _, WITHOUT_EFFECT = REST.partition("## Accepted without effect")

ROW = re.compile(r"^\| `([\w.]+)` \| (?:`([^`]*)`)? *\| (\w*|%) *\| (.+) \|$", re.MULTILINE)


def default_of(field: "dataclasses.Field[object]") -> str:
    if field.name == "store_path_root_dir":
        return "$HOME/store"
    if field.default is None:
        return ""
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def test_every_option_is_documented_with_its_default_in_order() -> None:
    documented = [(key, default) for key, default, _, _ in ROW.findall(OPTIONS)]
    fields = dataclasses.fields(StoreConfig)
    assert documented == [(config.key_of(field.name), default_of(field)) for field in fields]


def test_other_names_are_documented() -> None:
    renamed = re.findall(r"^\| `([\w.]+)` \| `(\w+)`", RENAMED, re.MULTILINE)
    assert dict(renamed) == dict(StoreConfig.keys.renamed)


def test_options_with_a_fixed_value_are_documented() -> None:
    accepted_keys = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$", FIXED, re.MULTILINE)
    assert {key: (accepted, reason) for key, accepted, reason in accepted_keys} == ONLY


def test_keys_without_effect_are_documented_with_their_reason() -> None:
    rows = re.findall(r"^\| (.+?) \| (`.+`) \|$", WITHOUT_EFFECT, re.MULTILINE)
    reasons = {key: reason for reason, keys in rows for key in re.findall(r"`(\w+)`", keys)}
    assert reasons == ACCEPTED_WITHOUT_EFFECT
