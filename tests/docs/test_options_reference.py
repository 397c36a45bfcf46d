"""The reference pages of broker and name server agree with the code, word by word."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from reput import config
from reput.broker.settings import keys as config_keys
from reput.broker.settings.config import BrokerConfig
from reput.controller import config as controller_config
from reput.controller.config import ControllerConfig
from reput.grpc.proxy import config as proxy_config
from reput.grpc.proxy.config import ProxyConfig
from reput.namesrv import config as namesrv_config
from reput.namesrv.config import NamesrvConfig

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]*)`)? *\| (\w*) *\| (.+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """A reference page and its settings."""

    page: str
    kind: type
    without_effect: Mapping[str, str]
    only: Mapping[str, tuple[str, str]]
    machine_defaults: Mapping[str, str]
    """Defaults that depend on the machine."""

    @property
    def keys(self) -> config.Keys:
        keys = self.kind.keys  # type: ignore[attr-defined]
        assert isinstance(keys, config.Keys)
        return keys


PARTS = [
    Part(
        "broker-options.md",
        BrokerConfig,
        config_keys.ACCEPTED_WITHOUT_EFFECT,
        config_keys.ONLY,
        {
            "broker_name": "the host's name",
            "broker_ip1": "the address of the default route",
            "broker_ip2": "the address of the default route",
            "rocketmq_home": "$ROCKETMQ_HOME",
        },
    ),
    Part(
        "namesrv-options.md",
        NamesrvConfig,
        namesrv_config.ACCEPTED_WITHOUT_EFFECT,
        namesrv_config.ONLY,
        {
            "rocketmq_home": "$ROCKETMQ_HOME",
            "kv_config_path": "$HOME/namesrv/kvConfig.json",
            "config_store_path": "$HOME/namesrv/namesrv.properties",
        },
    ),
    Part(
        "controller-options.md",
        ControllerConfig,
        controller_config.ACCEPTED_WITHOUT_EFFECT,
        controller_config.ONLY,
        {
            "rocketmq_home": "$ROCKETMQ_HOME",
            "config_store_path": "$HOME/controller/controller.properties",
            "listen_port": "9878",
        },
    ),
    Part("proxy-options.md", ProxyConfig, proxy_config.ACCEPTED_WITHOUT_EFFECT, {}, {}),
]


@pytest.fixture(params=PARTS, ids=lambda reference: reference.page)
def part(request: pytest.FixtureRequest) -> Part:
    assert isinstance(request.param, Part)
    return request.param


def section(part: Part, name: str) -> str:
    """Return the text below a heading."""
    page = (REFERENCE / part.page).read_text()
    if name not in page:
        return ""
    return page.split(f"## {name}\n")[1].split("\n## ")[0]


def options(part: Part) -> str:
    page = (REFERENCE / part.page).read_text()
    return page.split("## Other names")[0].split("## What must stay")[0]


def meanings(kind: type) -> dict[str, str]:
    """Return the attribute docs of a class as a page has them."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    meaning_by_field = {}
    for statement, doc in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(doc, ast.Expr)
            and isinstance(doc.value, ast.Constant)
        ):
            meaning_by_field[statement.target.id] = " ".join(str(doc.value.value).split()).replace(
                "``", "`"
            )
    return meaning_by_field


def default_of(option: "dataclasses.Field[object]", part: Part) -> str:
    if option.name in part.machine_defaults:
        return part.machine_defaults[option.name]
    return str(option.default).lower() if isinstance(option.default, bool) else str(option.default)


def test_every_option_is_documented_in_order_with_default_and_meaning(part: Part) -> None:
    documented = [(key, default, text) for key, default, _, text in ROW.findall(options(part))]
    means = meanings(part.kind)
    assert documented == [
        (config.key_of(field.name), default_of(field, part), means[field.name])
        for field in dataclasses.fields(part.kind)
    ]


def test_other_names_of_options_are_documented(part: Part) -> None:
    renamed = re.findall(
        r"^\| `([\w.]+)` \| `(\w+)` \|$", section(part, "Other names"), re.MULTILINE
    )
    assert dict(renamed) == dict(part.keys.renamed)


def test_options_with_a_fixed_value_are_documented(part: Part) -> None:
    text = section(part, "What must stay as it is")
    accepted_keys = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? *\| (.+) \|$", text, re.MULTILINE)
    assert {key: (accepted, reason) for key, accepted, reason in accepted_keys} == part.only


def test_keys_without_effect_have_a_documented_reason(part: Part) -> None:
    text = section(part, "Accepted without effect")
    rows = re.findall(r"^\| (.+?) \| (`.+`) \|$", text, re.MULTILINE)
    reasons = {key: reason for reason, keys in rows for key in re.findall(r"`(\w+)`", keys)}
    assert reasons == part.without_effect
