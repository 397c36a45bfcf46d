"""Which sessions get the Python of the program for their workers, and the source with it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_rocketmq import DefaultSource
from reput.spark.registration import PYTHON_VARIABLE, let_workers_find_source

OTHER = "/usr/bin/python3"
"""Python that Spark starts for workers by default."""


class Session:
    """A session as far as its Python is concerned.

    Args:
        master: Master of its cluster.
        python: Python of its workers.
        settings: Names of the settings that its configuration contains.
    """

    def __init__(
        self, master: str | None = "local[2]", python: str = OTHER, settings: tuple[str, ...] = ()
    ) -> None:
        conf = SimpleNamespace(contains=lambda name: name in settings)
        self.sparkContext = SimpleNamespace(master=master, pythonExec=python, getConf=lambda: conf)
        self.sources: list[tuple[type, str]] = []
        """Registered sources, each with the Python of workers at this time: Spark copies it."""
        self.dataSource = SimpleNamespace(register=self._register)

    def _register(self, source: type) -> None:
        self.sources.append((source, self.sparkContext.pythonExec))


class ConnectSession:
    """A session of Spark Connect, which has no context."""

    __module__ = "pyspark.sql.connect.session"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]"])
def test_workers_of_a_local_session_run_the_python_of_the_program(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    session: Any = Session(master)
    for _ in range(2):  # the second read finds the Python chosen
        let_workers_find_source(session)
        assert session.sparkContext.pythonExec == sys.executable
        assert session.sources == [(DefaultSource, sys.executable)]


@pytest.mark.parametrize(
    ("session", "variable"),
    [
        pytest.param(Session(), "/opt/python", id="a chosen Python in the environment"),
        pytest.param(Session(settings=("spark.pyspark.python",)), None, id="a chosen Python"),
        pytest.param(Session("spark://10.0.0.1:7077"), None, id="a cluster"),
        pytest.param(Session(None), None, id="no master"),
        pytest.param(Session(python=sys.executable), None, id="the same Python"),
    ],
)
def test_other_sessions_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, session: Any, variable: str | None
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(PYTHON_VARIABLE, variable)
    python = session.sparkContext.pythonExec
    let_workers_find_source(session)
    assert (session.sparkContext.pythonExec, session.sources) == (python, [])


def test_a_session_of_spark_connect_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    session: Any = ConnectSession()
    let_workers_find_source(session)  # it has nothing to change
    assert vars(session) == {}
