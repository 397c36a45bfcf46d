"""What asks Java, for each version, once a session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop import java_oracle
from interop.java_oracle import JavaUnavailable, Oracle
from interop.java_store import JavaStore

pytest.register_assert_rewrite("interop.same_puts")

BROKER_JARS = tuple(f"rocketmq-{name}" for name in ("broker", "filter", "acl", "auth", "srvutil"))
"""What the classes of a broker's settings and tables touch, beyond the jars of every oracle."""


class TableOracle(Oracle):
    """A running ``TableOracle.java``."""

    main_class = "TableOracle"

    def folders(self, version: str, work: Path) -> list[Path]:
        more = java_oracle.more_jars(version, "broker", BROKER_JARS, work)
        return [java_oracle.jars(version), more]


# One worker a version, so that there is one Java process a version.
VERSIONS = [
    pytest.param(version, marks=pytest.mark.xdist_group(f"rocketmq-{version}"))
    for version in java_oracle.versions()
]


@pytest.fixture(scope="session", params=VERSIONS)
def oracle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    yield from _running(Oracle, request.param, tmp_path_factory)


@pytest.fixture(scope="session", params=VERSIONS)
def table_oracle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    yield from _running(TableOracle, request.param, tmp_path_factory)


@pytest.fixture(scope="session", params=VERSIONS)
def java_store(request: pytest.FixtureRequest) -> JavaStore:
    """The message store of a version; each use starts a process."""
    try:
        return JavaStore(request.param)
    except JavaUnavailable as reason:
        if java_oracle.wants_all_versions():
            raise
        pytest.skip(str(reason))


def _running(
    kind: type[Oracle], version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    try:
        process = kind(version, tmp_path_factory.mktemp(f"rocketmq-{version}"))
    except JavaUnavailable as reason:
        if java_oracle.wants_all_versions():
            raise
        pytest.skip(str(reason))
    yield process
    process.close()
