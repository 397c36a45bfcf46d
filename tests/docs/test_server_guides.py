"""The statements of the pages on running a broker are true."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import golden
import world
from controller_subject import ControllerSubject
from reput.broker.monitoring.metrics import NAMES_MAX
from reput.cli import main as cli
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.metrics import NameServerMeter
from reput.namesrv.server import NameServer
from reput.remoting.metrics_server import LEFT_OUT, Family, HistogramFamily
from reput.store.config import BrokerRole

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
TESTING = HOW_TO / "test-with-a-local-broker.md"
RUNNING = HOW_TO / "run-a-broker.md"
MOVING = HOW_TO / "move-from-a-java-broker.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", TESTING.read_text(), re.MULTILINE | re.DOTALL)


def test_the_blocks_of_test_with_a_local_broker_run() -> None:
    names: dict[str, object] = {}
    plain = [code for code in blocks() if "def test_" not in code and "pytest" not in code]
    assert len(plain) == 6
    for block in plain:
        exec(compile(block, TESTING.name, "exec"), names)


def test_the_checks_of_move_from_a_java_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run its commands beside a store, and compare the lines that it shows."""
    root = golden.unpack("4.9.7", "unclean")
    settings = golden.manifest("4.9.7", "unclean")["config"] | {
        "storePathRootDir": root,
        "listenPort": 0,
        "haListenPort": 0,
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
    }
    conf = "".join(f"{key}={value}\n" for key, value in settings.items())
    (tmp_path / "broker.conf").write_text(conf)
    monkeypatch.chdir(tmp_path)
    page = MOVING.read_text()
    commands = re.findall(r"^reput (broker .*--check.*)$", page, re.MULTILINE)
    assert len(commands) == 3
    printed = []
    for command in commands:
        assert cli.run(command.split()) == 0
        printed.append(capsys.readouterr().out)
    (shown,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    start, end = shown.replace("/data/rocketmq/store", str(root)).split("…\n")
    assert printed[0].startswith(start)
    assert end.startswith("Go, with ")
    assert re.search(r"^Go, with \d+ warnings?\.$", printed[0], re.MULTILINE)


def test_its_tests_pass(tmp_path: Path) -> None:
    tests = [block for block in blocks() if "def test_" in block]
    assert len(tests) == 3
    imports = "from reput.client import Message\nfrom reput.client.blocking import Producer\n"
    assert imports in blocks()[0]
    tmp_path.joinpath("test_page.py").write_text(imports + "\n\n".join(tests))
    options = "-q -p no:cacheprovider -p no:xdist -p no:asyncio -p no:reput".split()  # noqa: SIM905
    plugin = ("-p", "reput.testing.pytest_plugin")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *plugin, "-W", "error", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


Families = dict[str, tuple[str, ...]]
"""Metric -> its labels."""


def documented(rows: str) -> Families:
    text = "\n".join(line for line in rows.splitlines() if line.startswith("|"))
    return {
        name: tuple(labels.split(",")) if labels else ()
        for name, labels in re.findall(r"`(reput_\w+)(?:\{([\w,]+)\})?`(?=[,| ])", text)
    }


def measured(families: Iterable[Family | HistogramFamily]) -> Families:
    names = {family.name: family.labels for family in families if family.name != "reput_info"}
    return {**names, LEFT_OUT: ()}


async def test_every_metric_is_in_the_table(tmp_path: Path) -> None:
    text = RUNNING.read_text()
    of_broker, of_name_server = text.split("| metric of a name server |")
    async with world.broker(tmp_path) as subject:
        of_master = measured(await world.meter(subject.broker).measure())
        await subject.broker.change_role(BrokerRole.SLAVE, 1)
        of_slave = measured(await world.meter(subject.broker).measure())
    access = world.access_settings(authorization_enabled=False)
    async with world.broker(tmp_path / "secured", access=access) as subject:
        of_secured = measured(await world.meter(subject.broker).measure())
    of_led = await _measured_under_a_controller(tmp_path)
    assert documented(of_broker) == {**of_master, **of_slave, **of_secured, **of_led}
    server = NameServer(NamesrvConfig(kv_config_path=str(tmp_path / "kvConfig.json")))
    assert documented(of_name_server) == measured(await NameServerMeter(server).measure())
    assert f"first {NAMES_MAX} topics" in text


async def _measured_under_a_controller(folder: Path) -> Families:
    async with (
        ControllerSubject(folder / "controller") as controller,
        world.broker(
            folder / "led",
            store={"ha_listen_port": 0},
            enable_controller_mode=True,
            controller_addr=controller.address,
            broker_id=-1,
            broker_ip2="127.0.0.1",
        ) as subject,
    ):
        await world.until(lambda: subject.broker.is_open and subject.broker.identity.is_master)
        return measured(await world.meter(subject.broker).measure())


CREDENTIALS = {
    "go/main.go": (
        "producer.WithCredentials(",
        "primitive.Credentials{",
        "AccessKey:",
        "SecretKey:",
    ),
    "cpp/client.py": (".set_session_credentials(",),
    "node/client.js": ("new Producer({", "accessKeyId:", "accessKeySecret:"),
}
"""Words of the page that the tested program around each client contains."""


@pytest.mark.parametrize("program", CREDENTIALS)
def test_credentials_of_other_clients_are_given_as_in_the_tested_programs(program: str) -> None:
    page = (HOW_TO / "secure-a-broker.md").read_text()
    source = (HOW_TO.parents[1] / "tests/interop" / program).read_text()
    for words in CREDENTIALS[program]:
        assert words in page
        assert words in source
