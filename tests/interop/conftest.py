"""Fixtures for the Java oracles, stores, clusters and clients of each version."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from interop import java_cluster, java_oracle
from interop.java_cluster import JavaClient, JavaCluster, Settings
from interop.java_oracle import JavaOracle, JavaUnavailable
from interop.java_store import JavaStore
from interop.recorded_oracle import oracle_fixture

pytest.register_assert_rewrite("interop.same_puts", "interop.mqadmin.sides")

AnyOracle = TypeVar("AnyOracle", bound=JavaOracle)
Running = TypeVar("Running")
StartOfficial = Callable[..., JavaCluster]


class StartOracle(Protocol):
    def __call__(self, kind: type[AnyOracle], version: str) -> AnyOracle: ...


BROKER_JARS = tuple(f"rocketmq-{name}" for name in ("broker", "filter", "acl", "auth", "srvutil"))
"""Jars that the classes of a broker's settings and tables need, besides those of every oracle."""


class TableOracle(JavaOracle):
    """Running ``TableOracle.java``."""

    main_class = "TableOracle"

    def folders(self, version: str, work: Path) -> list[Path]:
        more = java_oracle.more_jars(version, "broker", BROKER_JARS, work)
        return [java_oracle.jars(version), more]


# These tests mostly wait for brokers and members. In one group per version they would run in
# sequence. All other tests are grouped by version, so that each version's Java process starts once.
WITH_CLUSTERS = frozenset(
    {
        "mqadmin",
        "test_admin",
        "test_clients_of_others",
        "test_consumers",
        "test_folders_both_ways",
        "test_forbidden",
        "test_java_clients_on_reput",
        "test_light_queues",
        "test_local_broker",
        "test_metrics",
        "test_move",
        "test_namesrv",
        "test_pop",
        "test_pop_consumer",
        "test_order",
        "test_priority",
        "test_proxy_handles",
        "test_producer",
        "test_reply",
        "test_reset",
        "test_retry",
        "test_rocksdb_stores",
        "test_timer",
        "test_trace",
        "test_transactions",
    }
)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests for the workers."""
    for item in items:
        here = Path(__file__).parent
        if here not in item.path.parents:
            continue
        name = item.path.relative_to(here).with_suffix("").parts[0]
        if name in WITH_CLUSTERS:
            item.add_marker(pytest.mark.xdist_group(name))


# One worker per version, so that there is one Java process per version.
VERSIONS = [
    pytest.param(version, marks=pytest.mark.xdist_group(f"rocketmq-{version}"))
    for version in java_oracle.versions()
]


@contextlib.contextmanager
def _running(
    kind: type[AnyOracle], version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AnyOracle]:
    folder = tmp_path_factory.mktemp(f"{kind.main_class}-{version}")
    with contextlib.closing(_or_skip(lambda: kind(version, folder))) as process:
        yield process


@pytest.fixture(scope="module")
def start_oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartOracle]:
    """Provide a function that starts an oracle: ``start_oracle(TraceOracle, "4.9.7")``.

    A module's oracle of a kind and version is started once, and closed at the end of the module.
    """
    running: dict[tuple[type[JavaOracle], str], Any] = {}
    with contextlib.ExitStack() as stack:

        def start(kind: type[AnyOracle], version: str) -> AnyOracle:
            if (kind, version) not in running:
                process = stack.enter_context(_running(kind, version, tmp_path_factory))
                running[kind, version] = process
            started: AnyOracle = running[kind, version]
            return started

        yield start


oracle = oracle_fixture(JavaOracle)
table_oracle = oracle_fixture(TableOracle)


@pytest.fixture(scope="session", params=VERSIONS)
def java_store(request: pytest.FixtureRequest) -> JavaStore:
    """Provide the message store of each version; each use starts a process."""
    return _or_skip(lambda: JavaStore(request.param))


BROKERS = [
    pytest.param(version, marks=pytest.mark.xdist_group(f"rocketmq-{version}"))
    for version in java_cluster.broker_versions()
]


@pytest.fixture(scope="session", params=BROKERS)
def official(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaCluster]:
    """Provide the official name server and broker of a version, shared: use unique topics."""
    folder = tmp_path_factory.mktemp(f"cluster-{request.param}")
    with _or_skip(lambda: JavaCluster(request.param, folder)) as cluster:
        yield cluster


@pytest.fixture
def start_official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartOfficial]:
    """Provide a function that starts an official cluster, which is killed after the test.

    ``start_official("4.9.7", {"flushDiskType": "SYNC_FLUSH"}, folder)``; without a folder, in a new
    one; ``also`` as in ``JavaCluster``.
    """
    with contextlib.ExitStack() as stack:

        def start(
            version: str = java_cluster.DEFAULT_BROKERS[0],
            settings: Settings | None = None,
            folder: Path | None = None,
            also: Sequence[str] = (),
        ) -> JavaCluster:
            root = folder or tmp_path_factory.mktemp(f"cluster-{version}")
            return stack.enter_context(
                _or_skip(lambda: JavaCluster(version, root, settings, also=also))
            )

        yield start


@pytest.fixture(scope="session", params=VERSIONS)
def java_client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClient]:
    """Provide the official clients of a version, in one Java process; see ``java_cluster``."""
    folder = tmp_path_factory.mktemp(f"client-{request.param}")
    with _or_skip(lambda: JavaClient(request.param, folder)) as client:
        yield client


def _or_skip(start: Callable[[], Running]) -> Running:
    """Return the started object; if Java is missing, skip, unless all versions are requested.

    With ``REPUT_TEST_NEEDS=java`` the skipped test fails; see ``skips.py``.
    """
    try:
        return start()
    except JavaUnavailable as reason:
        if java_oracle.wants_all_versions():
            raise
        pytest.skip(f"missing java: {reason}")
