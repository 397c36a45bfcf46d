"""The quickstarts run, and the pages on what works agree with the code."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from reput import config
from reput.broker.settings.config import BrokerConfig
from reput.client.blocking import PullConsumer
from reput.errors import InvalidOption
from reput.store.config import ONLY as STORE_ONLY, StoreConfig
from reput.testing import LocalBroker

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ADDRESS = "127.0.0.1:9876"


def blocks(page: str, language: str = "python") -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_python(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    send, consume = blocks("quickstart/python.md")
    received = PullConsumer.__next__

    def first_only(consumer: PullConsumer) -> object:
        monkeypatch.setattr(PullConsumer, "__next__", end)
        return received(consumer)

    def end(consumer: PullConsumer) -> object:
        raise StopIteration  # Ctrl-C of the page

    monkeypatch.setattr(PullConsumer, "__next__", first_only)
    with LocalBroker() as mq:
        for source in (send, consume):
            exec(compile(source.replace(ADDRESS, mq.namesrv_addr), "python.md", "exec"), {})
    sent, consumed = capsys.readouterr().out.splitlines()
    assert sent.startswith("SEND_OK ")
    assert consumed == "0 paid b'two coffees'"


def test_tests_in_ci(tmp_path: Path) -> None:
    (source,) = blocks("quickstart/tests-in-ci.md")
    (tmp_path / "test_page.py").write_text(source)
    options = ["-p", "no:cacheprovider", "-p", "no:reput", "-p", "reput.testing.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("page", "language", "program", "words"),
    [
        (
            "java.md",
            "java",
            "ReplyOracle.java",
            ("DefaultMQProducer producer = new DefaultMQProducer(", "producer.setNamesrvAddr("),
        ),
        (
            "go-and-node.md",
            "go",
            "go/main.go",
            ("producer.WithNameServer(", "producer.WithGroupName(", "rocketmq.NewProducer("),
        ),
        (
            "go-and-node.md",
            "js",
            "node/client.js",
            ("new Producer({", "await producer.ready();", "nameSrv:", "producerGroup:"),
        ),
    ],
)
def test_other_clients_are_called_as_in_the_tested_programs(
    page: str, language: str, program: str, words: tuple[str, ...]
) -> None:
    source = (ROOT / "tests/interop" / program).read_text(encoding="utf-8")
    code = "\n".join(blocks(f"quickstart/{page}", language))
    assert [word for word in words if word not in code] == []
    assert [word for word in words if word not in source] == []


def test_extras_of_the_install_page_exist() -> None:
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    extras = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras) == {*project["optional-dependencies"]} - {"dev", "docs"}


REFUSED = re.findall(r"`(\w+)(?:=(\w+))?` stops the start", (DOCS / "what-works.md").read_text())


def test_refusals_are_listed() -> None:
    assert len(REFUSED) == 4


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_what_is_said_to_stop_the_start_does(key: str, value: str) -> None:
    settings = config.Settings({key: value or "x"})
    part = StoreConfig if key in STORE_ONLY else BrokerConfig
    with pytest.raises(InvalidOption, match=key):
        settings.make(part)
