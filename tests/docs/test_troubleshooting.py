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
def templates() -> list[str]:
    """Return the messages of the code, with a gap for each value."""
    texts = []
    for file in sorted((ROOT / "src/reput").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    str(part.value) if isinstance(part, ast.Constant) else GAP
                    for part in node.values
                ]
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"%[sdr]", GAP, node.value))
    return texts


def test_the_page_has_texts() -> None:
    assert len(TEXTS) > 25


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_in_the_code(text: str) -> None:
    parts = [re.escape(part.strip()) for part in text.split(GAP) if len(part.strip()) > 2]
    pattern = re.compile(".*".join(parts), re.DOTALL)
    assert any(pattern.search(template) for template in templates())
