"""The Python of the how-to pages runs unchanged, block after block."""

import re
from pathlib import Path

import pytest

from reput.store.reader import StoreReader
from reput.store.verify import Severity, verify

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-a-store.md"


def test_keep_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 10
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    report = verify(StoreReader.open("store"))
    assert [finding for finding in report.findings if finding.severity is Severity.DAMAGE] == []
