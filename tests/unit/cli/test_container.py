"""The container: its file, its scripts, and the probe of its health."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from reput.cli import main, serving
from reput.cli.health import DEFAULT_PORT

ROOT = Path(__file__).parents[3]
CONTAINER = ROOT / "ops/container"
FOLDER = CONTAINER / "bin"
CONF = ("-c", "/conf/broker.conf")


# --- the file -----------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    lines = (CONTAINER / "Containerfile").read_text().splitlines()
    return [
        (word, rest)
        for line in lines
        if line and not line.startswith("#")
        for word, _, rest in [line.partition(" ")]
    ]


def test_the_container_file() -> None:
    last = dict(instructions())
    assert last.keys() <= {
        *("ARG", "FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE"),
        *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
    }
    assert last["USER"] == "3000:3000"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(last["HEALTHCHECK"].partition(" CMD ")[2]) == ["reput", "health"]
    (entry_point,) = json.loads(last["ENTRYPOINT"])
    assert (FOLDER / Path(entry_point).name).stat().st_mode & 0o111
    assert json.loads(last["CMD"]) == ["broker"]
    home = re.search(r"HOME=(\S+)", last["ENV"])
    assert home is not None
    assert all(folder.startswith(home[1]) for folder in json.loads(last["VOLUME"]))
    assert f"REPUT_METRICS_PORT={DEFAULT_PORT}" in last["ENV"]
    assert str(DEFAULT_PORT) in last["EXPOSE"].split()


def test_copied_files_and_extras_exist() -> None:
    sources = [rest.split()[0] for word, rest in instructions()
               if word == "COPY" and not rest.startswith("--from")]  # fmt: skip
    assert sources == ["dist/", "ops/container/bin/"]
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", (CONTAINER / "Containerfile").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))


def test_the_steps_are_commands_of_a_shell() -> None:
    steps = [rest for word, rest in instructions() if word == "RUN"]
    assert len(steps) == 2
    for step in steps:
        done = subprocess.run(["sh", "-n", "-c", step], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


# --- the scripts --------------------------------------------------------------------------------


def shown(
    script: str, *arguments: str, folder: Path, **variables: str
) -> tuple[list[str], set[str], str]:
    """Return the arguments and variables with which a script runs reput, and its warnings."""
    program = folder / "reput"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"; env | grep ^REPUT_ || true\n')
    program.chmod(0o755)
    done = subprocess.run(
        [str(FOLDER / script), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{folder}:{os.defpath}", **variables},
    )
    lines = done.stdout.splitlines()
    return (
        [line for line in lines if not line.startswith("REPUT_")],
        {line for line in lines if line.startswith("REPUT_")},
        done.stderr,
    )


@pytest.mark.parametrize(
    ("arguments", "role", "expected"),
    [
        (["broker", *CONF], "", ["broker", *CONF]),
        (["namesrv"], "", ["namesrv"]),
        (["nameserver"], "", ["namesrv"]),
        (["./mqnamesrv", "-p"], "", ["namesrv", "-p"]),
        (["mqbroker", "-n", "a:1;b:2"], "", ["broker", "-n", "a:1;b:2"]),
        ([], "nameserver", ["namesrv"]),
        ([], "", ["broker"]),
        (["sh", "-c", "reput broker 'x y'"], "", ["broker", "x y"]),
    ],
)
def test_the_entry_point(
    arguments: list[str], role: str, expected: list[str], tmp_path: Path
) -> None:
    variables = {"NODE_ROLE": role} if role else {}
    assert shown("entrypoint", *arguments, folder=tmp_path, **variables)[0] == expected


def test_mqbroker_takes_javas_options(tmp_path: Path) -> None:
    arguments, variables, warnings = shown(
        *("mqbroker", "--enable-proxy", "-pc", "rmq-proxy.json", *CONF, "-n", "a b"),
        folder=tmp_path,
        HEAP_OPTS="-Xmx8g",
    )
    assert arguments == ["broker", *CONF, "-n", "a b"]
    assert variables == {"REPUT_GRPC_SERVER_PORT=8081"}
    assert "HEAP_OPTS" in warnings
    assert "-pc has no effect" in warnings


@pytest.mark.parametrize("arguments", [["-c"], ["-pc"], ["-n"]])
def test_an_option_without_its_value_is_left_to_reput(arguments: list[str], tmp_path: Path) -> None:
    given = shown("mqbroker", *arguments, folder=tmp_path)[0]
    assert given == ["broker", *(arguments if arguments != ["-pc"] else [])]


def test_mqbroker_reads_the_variables_of_the_operator(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "broker.conf").touch()
    operator = {
        "BROKER_NAME": "broker-0",
        "BROKER_CLUSTER_NAME": "prod",
        "POD_IP": "10.1.2.3",
        "ROCKETMQ_HOME": str(tmp_path),
    }
    names = {
        "REPUT_BROKER_NAME=broker-0",
        "REPUT_BROKER_CLUSTER_NAME=prod",
        "REPUT_BROKER_IP1=10.1.2.3",
    }
    arguments, variables, _ = shown("mqbroker", folder=tmp_path, BROKER_ID="0", **operator)
    assert arguments == ["broker", "-c", str(conf / "broker.conf")]
    assert variables == names | {"REPUT_BROKER_ID=0"}
    _, variables, _ = shown("mqbroker", folder=tmp_path, BROKER_ID="1", **operator)
    assert variables == names | {"REPUT_BROKER_ID=1", "REPUT_BROKER_ROLE=SLAVE"}


def test_the_variables_are_settings_of_a_broker(tmp_path: Path) -> None:
    variables = {
        "REPUT_BROKER_NAME": "broker-0",
        "REPUT_BROKER_CLUSTER_NAME": "prod",
        "REPUT_BROKER_IP1": "10.1.2.3",
        "REPUT_BROKER_ID": "1",
        "REPUT_BROKER_ROLE": "SLAVE",
        "REPUT_GRPC_SERVER_PORT": "8081",
        "REPUT_METRICS_PORT": "5558",
    }
    done = subprocess.run(
        [sys.executable, "-m", "reput", "broker", "-p", "--store", str(tmp_path), "--strict"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    settings = dict(line.split("=", 1) for line in done.stdout.splitlines())
    keys = ("brokerName", "brokerClusterName", "brokerIP1", "brokerId", "brokerRole")
    assert [settings[key] for key in keys] == ["broker-0", "prod", "10.1.2.3", "1", "SLAVE"]
    assert settings["grpcServerPort"] == "8081"


# --- the probe ----------------------------------------------------------------------------------


@pytest.fixture(params=[200, 503])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(request.param if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(b'{"status": "some"}')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = Thread(target=listening.serve_forever)
        thread.start()
        yield listening.server_port, request.param
        listening.shutdown()
        thread.join()


def test_health_ends_with_the_state(
    server: tuple[int, int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, status = server
    monkeypatch.setenv("REPUT_METRICS_PORT", str(port))
    expected = 0 if status == 200 else 1
    assert main.run(["health"]) == expected
    assert main.run(["health", f"127.0.0.1:{port}"]) == expected
    assert capsys.readouterr().out == '{"status": "some"}\n' * 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost", "host:port"])
def test_without_an_answer_health_names_the_address(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["health", address]) == 2
    assert address in capsys.readouterr().err


def test_variables_of_the_tests_are_no_settings() -> None:
    """Brokers that make soak started refused REPUT_SOAK."""
    tests = Path(__file__).parents[2]
    texts = [file.read_text(encoding="utf-8") for file in tests.rglob("*.py")]
    read = r'environ(?:\.get\(|\[)"(REPUT_\w+)"|"(REPUT_\w+)" (?:not )?in os\.environ'
    constant = r'VARIABLE = "(REPUT_\w+)"'
    read_names = (
        "".join(match.groups(default=""))
        for text in texts
        for match in re.finditer(f"{read}|{constant}", text)
    )
    names = {*read_names}
    assert len(names) > 10
    assert names <= serving._NO_SETTINGS
