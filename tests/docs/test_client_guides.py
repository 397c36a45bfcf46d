"""The Python of the guides about clients runs unchanged, block after block."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reput.client import Message
from reput.client.blocking import Admin, Producer
from reput.testing import LocalBroker

GUIDES = Path(__file__).parents[2] / "docs/how-to"
ADDRESS = "127.0.0.1:9876"
LIMIT_S = 60


def blocks(page: str) -> list[str]:
    text = (GUIDES / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(page: str, count: int, mq: LocalBroker) -> dict[str, object]:
    """Run the blocks of a page with the address of a broker; return their names."""
    sources = blocks(page)
    assert len(sources) == count
    names: dict[str, object] = {"__name__": page}
    for source in sources:
        assert source.count(ADDRESS) or "namesrv" not in source
        exec(compile(source.replace(ADDRESS, mq.namesrv_addr), page, "exec"), names)
    return names


def send_orders(mq: LocalBroker) -> None:
    with Producer("shop", namesrv=mq.namesrv_addr) as producer:
        for number in range(8):
            producer.send(
                Message(
                    "Orders",
                    b"order %d" % number,
                    tags="paid",
                    keys=f"order-{number}",
                    properties={"city": "Bern"},
                )
            )


def test_send_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalBroker() as mq:
        run("send-messages.md", 10, mq)
        assert len(mq.messages("Orders")) > 1_000
    shown = capsys.readouterr().out
    assert shown.startswith("SEND_OK ")
    assert "'a || b'" in shown


def test_consume_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # has the consumer offsets of broadcasting members
    with LocalBroker(topics={"Orders": 4}) as mq:
        run("consume-messages.md", 11, mq)
    shown = capsys.readouterr().out
    assert "paid ['order-" in shown
    assert "messages to read" in shown


def test_deliver_later() -> None:
    with LocalBroker(settings={"recallMessageEnable": True}) as mq:
        run("deliver-later.md", 3, mq)
        mq.advance(61_000)
        assert [message.body for message in mq.messages("Orders")] == [b"remind me", b"in a minute"]
        mq.advance(86_400_000)
        assert [message.body for message in mq.messages("Orders")][2:] == [b"tomorrow"]


def test_send_in_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalBroker() as mq:
        run("send-in-transactions.md", 2, mq)
        assert [message.body for message in mq.messages("Orders")] == [b"two coffees"]


def test_pop_messages() -> None:
    with LocalBroker(topics=["Orders"]) as mq:
        run("pop-messages.md", 1, mq)
        assert [message.body for message in mq.messages("Orders")] == [b"tea", b"coffee"]


def test_ask_and_trace() -> None:
    with LocalBroker() as mq:
        run("ask-and-trace.md", 3, mq)


def test_administer_with_python(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalBroker(topics={"Orders": 4}) as mq:
        send_orders(mq)
        run("administer-with-python.md", 7, mq)
    assert "lag: 8 in 4 queues" in capsys.readouterr().out


def test_trace_with_opentelemetry(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalBroker(topics={"Orders": 4}) as mq:
        run("trace-with-opentelemetry.md", 2, mq)
    lines = [line.partition(" ") for line in capsys.readouterr().out.splitlines()]
    assert len({trace_id for trace_id, _, _ in lines}) == 1
    text = (GUIDES / "trace-with-opentelemetry.md").read_text(encoding="utf-8")
    assert ", ".join(f"`{name}`" for _, _, name in lines) in text


def test_a_consumer_as_a_service_stops_cleanly(tmp_path: Path) -> None:
    (source,) = blocks("run-a-consumer-as-a-service.md")
    program = tmp_path / "service.py"
    program.write_text(source)
    with LocalBroker(topics={"Orders": 4}) as mq:
        send_orders(mq)
        environment = {
            **os.environ,
            "NAMESRV_ADDR": mq.namesrv_addr,
            "ALIVE_FILE": str(tmp_path / "alive"),
        }
        with subprocess.Popen(
            [sys.executable, str(program)], env=environment, stderr=subprocess.PIPE, text=True
        ) as service:
            try:
                log = read_log(service, "billed", 8)
                service.send_signal(signal.SIGTERM)
                _, rest = service.communicate(timeout=LIMIT_S)
            finally:
                service.kill()
        assert service.returncode == 0, log + rest
        assert "stopping" in rest
        assert not (tmp_path / "alive").exists()
        with Admin(mq.namesrv_addr) as admin:
            assert admin.consume_stats("billing", "Orders").lag == 0
            assert admin.consumer_connection("billing") is None


def read_log(service: "subprocess.Popen[str]", word: str, count: int) -> str:
    """Read lines until a word has come so often."""
    deadline = time.monotonic() + LIMIT_S
    lines = ""
    assert service.stderr is not None
    while lines.count(word) < count and time.monotonic() < deadline:
        line = service.stderr.readline()
        if not line:
            break
        lines += line
    assert lines.count(word) == count, lines
    return lines
