"""The Python of the page about reads without Spark runs unchanged, section by section."""

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import reput.arrow
from reput.client import blocking
from reput.client.message import Message, MessageQueue
from reput.testing import LocalBroker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-without-spark.md"
API = Path(__file__).parents[2] / "docs" / "reference" / "api" / "arrow.md"
COUNT = 40
"""Messages of topic orders, 20 in each of two queues."""

pytestmark = pytest.mark.xdist_group("arrow-guide")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Return a folder that replaces /data, and the address of a name server; both have messages."""
    root = tmp_path_factory.mktemp("data")
    with LocalBroker(topics={"orders": 2}, folder=root / "live") as mq:
        with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
            for number in range(COUNT):
                queue = MessageQueue("orders", "broker-a", number % 2)
                producer.send(Message("orders", b"x" * (number + 1), tags="TagA"), queue=queue)
        mq.messages("orders", at_least=COUNT)
        with blocking.Admin(mq.namesrv_addr) as admin:
            admin.create_group("billing")
            for queue_id in range(2):
                queue = MessageQueue("orders", "broker-a", queue_id)
                admin.update_consumer_offset("billing", queue, 15)
    shutil.copytree(root / "live", root / "store")
    with LocalBroker(folder=root / "live") as mq:
        yield root, mq.namesrv_addr


def sections() -> dict[str, list[str]]:
    """Return the blocks of Python below each heading."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        heading: re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


EXPECTED = {
    "Record batches": ["40 ['queue_id', 'keys', 'body']\n", "10\n"],
    "Fewer columns and rows": ["40\n", "10\n", "topics in ['orders'], tags in ['TagA']"],
    "pandas": ["TagA    40\n"],
    "Polars": ["│ TagA ┆ 40", "shape: (3, 2)"],
    "DuckDB": ["queue_id", "20 │ 20", "820"],
    "Files": ["40 "],
}
"""Parts of what the blocks of a section print; bodies have 820 bytes together."""


@pytest.mark.parametrize("section", EXPECTED)
def test_the_blocks_run(
    section: str, data: tuple[Path, str], capfd: pytest.CaptureFixture[str]
) -> None:
    blocks = sections()[section]
    for package in ("pandas", "polars", "duckdb"):
        is_needed = section.lower() == package
        if is_needed and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    root, address = data
    names: dict[str, object] = {}
    for block in blocks:
        text = block.replace("/data/", f"{root}/").replace("10.0.0.5:9876", address)
        exec(compile(text, PAGE.name, "exec"), names)
    printed = capfd.readouterr().out
    for part in EXPECTED[section]:
        assert re.sub(r" +", " ", part) in re.sub(r" +", " ", printed)


def test_every_section_with_code_is_run() -> None:
    assert [heading for heading, blocks in sections().items() if blocks] == list(EXPECTED)


def test_the_api_reference_has_every_function() -> None:
    listed = re.findall(r"^::: ([\w.]+)$", API.read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"reput.arrow.{name}" for name in reput.arrow.__all__} <= {*listed}
