"""A broker shows which engine its kernels have."""

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from reput import kernel_choice
from reput.errors import InvalidOption


def run(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
        timeout=60,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", [["--version"], ["store", "info", "."], ["up", "--store", "."]])
def test_an_unknown_engine_is_refused_with_the_allowed_ones(command: list[str]) -> None:
    code = f"from reput.cli.main import run\nprint(run({command}))"
    line = "reput: option 'REPUT_KERNELS' is 'natve'; allowed: native, numba, reference"
    assert set(run(code, REPUT_KERNELS="natve").splitlines()) == {line, "2"}


def test_the_version_says_what_is_slower() -> None:
    code = "from reput.cli.main import run\nrun(['--version'])"
    assert "several times slower" in run(code, REPUT_KERNELS="reference").splitlines()[1]


def test_an_engine_that_is_not_there_is_refused() -> None:
    code = (
        "from reput.format.kernels import library\n"
        "def missing(package):\n    raise OSError('no such file')\n"
        "library._linked_kernels = missing\n"
        "library.Library('reput.store.kernels').engine()"
    )
    printed = run(code, REPUT_KERNELS="native")
    assert "option 'REPUT_KERNELS' is 'native'; allowed: numba or reference here" in printed


@pytest.mark.parametrize(
    ("has_objects", "has_numba", "engine"),
    [(True, False, "native"), (False, True, "numba"), (False, False, "reference")],
)
def test_the_expected_engine_is_the_first_that_is_there(
    monkeypatch: pytest.MonkeyPatch, has_objects: bool, has_numba: bool, engine: str
) -> None:
    def load(path: str) -> None:
        if not has_objects:
            raise OSError(path)

    monkeypatch.delenv(kernel_choice.VARIABLE, raising=False)
    monkeypatch.setattr(kernel_choice, "ctypes", SimpleNamespace(CDLL=load))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if has_numba else None)
    assert kernel_choice.expected_engine() == engine


def test_a_broker_reports_its_engine_in_log_banner_and_metrics() -> None:
    code = (
        "import asyncio, logging\n"
        "logging.basicConfig(format='%(levelname)s %(message)s')\n"
        "from reput.cli import serving\n"
        "from reput.testing import LocalBroker\n"
        "from reput.broker.monitoring.metrics import BrokerMeter\n"
        "with LocalBroker() as mq:\n"
        "    async def show(controls):\n"
        "        broker = controls._brokers[0]\n"
        "        print(serving._banner(broker, None, 'host:9876'))\n"
        "        meter = BrokerMeter(broker.parts, broker.loops, dict)\n"
        "        (family,) = [f for f in await meter.measure() if f.name == 'reput_kernels']\n"
        "        print(family.values)\n"
        "    mq._call(show)\n"
    )
    printed = run(code, REPUT_KERNELS="reference")
    slower = "reference (plain Python: a broker is several times slower"
    assert f"WARNING kernels: {slower}" in printed
    assert f"  kernels      {slower}" in printed
    assert "('native',): 0.0, ('numba',): 0.0, ('reference',): 1.0" in printed


def test_an_allowed_value_is_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", *kernel_choice.ENGINES):
        monkeypatch.setenv(kernel_choice.VARIABLE, value)
        assert kernel_choice.asked_engine() == value
    monkeypatch.setenv(kernel_choice.VARIABLE, "jit")
    with pytest.raises(InvalidOption, match="native, numba, reference"):
        kernel_choice.asked_engine()
