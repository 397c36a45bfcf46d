"""The programs of examples/ run as their README says."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import yaml

from reput.broker.settings.config import BrokerConfig
from reput.cli import serve, serving
from reput.client import Message, blocking
from reput.namesrv.config import NamesrvConfig
from reput.testing import LocalBroker

EXAMPLES = Path(__file__).parents[2] / "examples"
COMPOSE = EXAMPLES / "compose"


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a user who has reput installed."""
    paths = [str(EXAMPLES.parent / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | variables


def run(*arguments: object, **variables: str) -> str:
    """Run Python in the root of the source tree; return its output."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=EXAMPLES.parent,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load(path: Path) -> ModuleType:
    """Import a program."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_the_readme_lists_every_example() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.name != "README.md"}
    names -= {"__pycache__"}
    readme = (EXAMPLES / "README.md").read_text()
    rows = "".join(line for line in readme.splitlines(keepends=True) if line.startswith("| ["))
    assert set(re.findall(r"\]\((\w+(?:\.py)?)[/)]", rows)) == names
    assert names == {
        path.rstrip("/") for path in re.findall(r"examples/(\w+(?:\.py)?)", readme)
    } | {
        "fastapi_service.py"  # named as a module
    }


def test_the_project_passes_its_tests() -> None:
    # As its own setting does from pytest 9.2 on: warnings of plugins while they start are errors.
    output = run("-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "examples/pytest_project")
    assert re.search(r"\b4 passed in", output), output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_consumer_finishes_its_message_after_a_signal(number: signal.Signals) -> None:
    with LocalBroker(topics={"Orders": 1}) as mq:
        with blocking.Producer("shop", namesrv=mq.namesrv_addr) as producer:
            producer.send(Message("Orders", b"two coffees", keys="order-1"))
        with subprocess.Popen(
            [sys.executable, EXAMPLES / "consumer_service.py"],
            env=environment(NAMESRV_ADDR=mq.namesrv_addr),
            stderr=subprocess.PIPE,
            text=True,
        ) as service:
            assert service.stderr is not None
            watchdog = threading.Timer(60, service.kill)
            watchdog.start()
            try:
                for line in service.stderr:
                    if "processing ['order-1']" in line:
                        break
                service.send_signal(number)
                rest = service.stderr.read()
                assert service.wait() == 0, rest
            finally:
                watchdog.cancel()
                service.kill()
        mq.wait_until_consumed("billing")
    lines = [line.split(" ", 4)[4] for line in rest.splitlines()]
    # The group may take the queue of its retry topic meanwhile.
    own = [line for line in lines if not line.startswith("group billing, topic")]
    assert own == ["stopping", "processed ['order-1']: 11 bytes", "stopped"]


def test_the_consumer_ends_with_an_error_for_a_wrong_address() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "consumer_service.py"],
        env=environment(NAMESRV_ADDR="nowhere:port"),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot consume: " in done.stderr
    assert "Traceback" not in done.stderr


async def test_the_web_application_sends_and_receives() -> None:
    service = load(EXAMPLES / "fastapi_service.py")
    async with LocalBroker(topics={"Orders": 4}) as mq:
        app = service.create_app(mq.namesrv_addr)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as web,
        ):
            ready = await web.get("/ready", timeout=30)
            assert (ready.status_code, ready.json()) == (200, {"queues": 4, "consumed_queues": 4})

            order = {"order_id": "order-1", "customer": "ann", "cents": 450}
            sent = await web.post("/orders", json=order)
            assert sent.status_code == 202
            (message,) = await mq.wait_for("Orders")
            assert (message.message_id, message.json()) == (sent.json()["message_id"], order)
            assert (await web.post("/orders", json={"order_id": "order-2"})).status_code == 422
            assert (await web.get("/orders/order-2")).status_code == 404

            async with asyncio.timeout(60):
                while (shown := await web.get("/orders/order-1")).status_code == 404:
                    await asyncio.sleep(0.01)
            assert shown.json() == order


async def test_the_web_application_reports_that_it_is_not_ready() -> None:
    service = load(EXAMPLES / "fastapi_service.py")
    async with LocalBroker(settings={"autoCreateTopicEnable": "false"}) as mq:
        app = service.create_app(mq.namesrv_addr)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as web,
        ):
            ready = await web.get("/ready", timeout=30)
            assert ready.status_code == 503
            assert "Orders" in ready.json()["detail"]


SPARK_PROGRAMS = """
import runpy, sys
_, namesrv, folder = sys.argv
sys.argv[1:] = [namesrv, "Orders"]
runpy.run_path("examples/spark_batch.py", run_name="__main__")
sys.argv.append(folder)
for _ in range(2):
    runpy.run_path("examples/spark_stream.py", run_name="__main__")
"""
"""Runs the programs in one process, whose JVM they share: its start takes longer than they do."""


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_spark_reads_and_streams_a_topic(tmp_path: Path) -> None:
    settings = tmp_path / "spark-defaults.conf"
    settings.write_text(
        "spark.master local[2]\nspark.ui.enabled false\nspark.sql.shuffle.partitions 2\n"
        "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n"
    )
    variables = {"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    with (
        LocalBroker(topics={"Orders": 4}) as mq,
        blocking.Producer("shop", namesrv=mq.namesrv_addr) as producer,
    ):
        for tag in ("paid", "paid", "refunded", None):
            producer.send(Message("Orders", b"two coffees", tags=tag))
        output = run("-c", SPARK_PROGRAMS, mq.namesrv_addr, tmp_path / "orders", **variables)
    rows = f"4 rows in {tmp_path}/orders/rows"
    # The second stream finds its checkpoint, and nothing new.
    assert output.splitlines() == ["(no tag): 1", "paid: 2", "refunded: 1", rows, rows]


def service_of_compose() -> dict[str, Any]:
    compose = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    service: dict[str, Any] = compose["services"]["mq"]
    return service


def options(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what ``reput`` makes of a command line that starts a server."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(serving, "up", lambda **read: given.update(read) or 0)
    monkeypatch.setattr("reput.cli.log_lines.begin", lambda *_, **__: None)
    assert serve.run(arguments) == 0
    return given


def test_compose_starts_a_broker_that_its_network_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    service = service_of_compose()
    given = options(service["command"], monkeypatch)
    assert (given["host"], given["advertise"], service["hostname"]) == ("0.0.0.0", "mq", "mq")
    assert f"store:{given['store']}" in service["volumes"]
    assert f"http://127.0.0.1:{given['metrics_port']}/health" in service["healthcheck"]["test"][3]
    compile(service["healthcheck"]["test"][3], "healthcheck", "exec")

    broker_port = BrokerConfig().listen_port
    ports = {NamesrvConfig().listen_port, broker_port, broker_port - 2}
    assert (given["port"], given["broker_port"]) == (NamesrvConfig().listen_port, broker_port)
    assert set(service["ports"]) == {f"{port}:{port}" for port in ports}
    spring = yaml.safe_load((COMPOSE / "application-test.yml").read_text())["rocketmq"]
    assert spring["name-server"] == f"mq:{given['port']}"
    assert spring["producer"]["group"]


def test_the_image_is_made_of_files_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    root = (COMPOSE / service_of_compose()["build"]["context"]).resolve()
    dockerfile = root / service_of_compose()["build"]["dockerfile"]
    lines = dockerfile.read_text()
    copied = dockerfile.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert copied[0] == "*"
    paths = [line.removeprefix("!") for line in copied if line.startswith("!")]
    assert {"src", "pyproject.toml"} <= set(paths)
    for path in paths:
        assert (root / path).exists(), path

    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", lines, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", lines, re.MULTILINE)
    assert json.loads(entrypoint) == ["reput"]
    given = options(json.loads(command), monkeypatch)
    assert re.findall(r"^VOLUME (.*)$", lines, re.MULTILINE) == [given["store"]]
    (exposed,) = re.findall(r"^EXPOSE (.*)$", lines, re.MULTILINE)
    assert {f"{port}:{port}" for port in exposed.split()} == set(service_of_compose()["ports"])
