"""The reference page of the clients' options agrees with the dataclasses, and its blocks run."""

import ast
import dataclasses
import enum
import inspect
import re
import typing
from pathlib import Path

import pytest

from reput import config
from reput.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from reput.config import Range
from reput.secret import Secret

PAGE = (Path(__file__).parents[2] / "docs/reference/client-options.md").read_text("utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \| `([\w.]+)` \| (.+) \|$", re.MULTILINE)
Settings = type[ClientConfig] | type[ProducerConfig] | type[ConsumerConfig]


def rows_of(kind: Settings) -> list[tuple[str, ...]]:
    section = PAGE.split(f": `{kind.__name__}`\n")[1].split("\n## ")[0]
    return ROW.findall(section)


def meanings(kind: Settings) -> dict[str, str]:
    (class_,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(class_, ast.ClassDef)
    texts = {}
    for entry, text in zip(class_.body, class_.body[1:], strict=False):
        if isinstance(entry, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(entry.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            texts[entry.target.id] = " ".join(str(text.value.value).split()).replace("``", "`")
    return texts


def default_of(field: "dataclasses.Field[object]") -> str:
    default = field.default
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, Secret) or default == "":
        return ""
    if isinstance(default, enum.Enum):
        return f"`{type(default).__name__}.{default.name}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default!r}`"


def allowed(hint: object) -> str:
    for limits in getattr(hint, "__metadata__", ()):
        if isinstance(limits, Range):
            if limits.most >= config.JAVA_INT_MAX:
                return f"from {limits.least:,}"
            return f"{limits.least:,} to {limits.most:,}"
    return ""


@pytest.mark.parametrize("kind", [ClientConfig, ProducerConfig, ConsumerConfig])
def test_every_option_is_documented_with_its_default_and_meaning(kind: Settings) -> None:
    hints = typing.get_type_hints(kind, include_extras=True)
    names: dict[str, str] = {}
    for name, key in kind.keys.renamed.items():
        names.setdefault(key, name)
    expected = [
        (
            field.name,
            default_of(field),
            allowed(hints[field.name]),
            names.get(config.key_of(field.name), config.key_of(field.name)),
            meanings(kind)[field.name],
        )
        for field in dataclasses.fields(kind)
    ]
    assert rows_of(kind) == expected


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "client-options.md", "exec"), names)
