"""The error texts of docs/troubleshooting.md are texts of the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
OWN = PAGE.partition("## Texts of other programs")[0]
TEXTS = re.findall(r"^\| `([^`]+)`.* \|$", OWN, re.MULTILINE)
GAP = "…"


@cache
def templates() -> set[str]:
    """Return the messages of the code, with a gap for each value."""
    texts = set()
    for file in sorted((ROOT / "src/reput").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    str(part.value) if isinstance(part, ast.Constant) else GAP
                    for part in node.values
                ]
                texts.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(re.sub(r"%[sdr]", GAP, node.value))
    return texts


def test_the_page_has_texts() -> None:
    assert len(TEXTS) > 25


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_in_the_code(text: str) -> None:
    parts = [part.strip() for part in text.split(GAP) if len(part.strip()) > 2]
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    with_parts = (each for each in templates() if all(part in each for part in parts))
    assert any(pattern.search(template) for template in with_parts)
