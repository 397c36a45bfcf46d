"""Fixtures for the Java oracles, stores, clusters and clients of each version."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from interop import java_cluster, java_oracle
from interop.java_cluster import JavaClient, JavaCluster, Settings
from interop.java_oracle import JavaUnavailable, Oracle
from interop.java_store import JavaStore

pytest.register_assert_rewrite("interop.same_puts", "interop.mqadmin.sides")

AnyOracle = TypeVar("AnyOracle", bound=Oracle)
Running = TypeVar("Running")
StartOfficial = Callable[..., JavaCluster]


class StartOracle(Protocol):
    def __call__(self, kind: type[AnyOracle], version: str) -> AnyOracle: ...


BROKER_JARS = tuple(f"rocketmq-{name}" for name in ("broker", "filter", "acl", "auth", "srvutil"))
"""Jars that the classes of a broker's settings and tables need, besides those of every oracle."""


class TableOracle(Oracle):
    """Running ``TableOracle.java``."""

    main_class = "TableOracle"

    def folders(self, version: str, work: Path) -> list[Path]:
        more = java_oracle.more_jars(version, "broker", BROKER_JARS, work)
        return [java_oracle.jars(version), more]


# Tests that wait for half a minute or more. Another version of RocketMQ, or the more likely
# outcome, is tested by default.
ONLY_WITH_ALL = (
    re.compile(r"test_tls\.py::test_our_clients_on_a_java_broker\[5\.5\.0"),
    re.compile(r"test_pop_consumer\.py::test_java_and_python_members_share"),
    re.compile(r"test_java_clients_on_reput\.py::test_clients_survive_a_restart.*-kill\]"),
    re.compile(r"test_spark_live\.py::test_a_stream_reads_each_message_once"),
    re.compile(r"test_metrics\.py::"),
    re.compile(r"test_recorded_replies\.py::"),
    re.compile(r"test_exporter\.py::"),
    re.compile(r"test_signed_clients\.py::test_another_client_is_refused.*-cpp\]"),
    re.compile(r"test_recipes.py::"),
    re.compile(r"test_retry.py::.*5\.5\.0"),
    re.compile(r"test_retry.py::test_consumers_get_equal_messages_from_the_official_broker"),
    re.compile(r"test_namesrv.py::.*\[5\.5\.0-4\.9\.7\]"),
    re.compile(r"test_folders_both_ways.py::.*-kill"),
    re.compile(r"test_spark_live.py::test_slaves"),
    re.compile(r"test_compare_live.py::"),
    re.compile(r"test_sql92.py::.*\[5\.5\.0"),
    re.compile(r"test_sql_pull.py::"),
    re.compile(r"test_order.py::"),
    re.compile(r"test_batch_queues\.py::"),
    re.compile(r"test_reset.py::.*5\.5\.0"),
    re.compile(r"test_timer.py::test_the_other_broker_continues"),
    re.compile(r"test_transactions.py::test_(the_other_broker_continues|checks_of_a_message)"),
    re.compile(r"test_reset.py::test_a_reset_moves_a_(java|python)_"),
    re.compile(r"test_(import|salvage|restore)\.py::.*\[5\.5\.0"),
    re.compile(r"test_pop\.py::test_(a_broker|members|java|ours)"),
    re.compile(r"test_tools_on_copies\.py::"),
    re.compile(r"test_pop_consumer\.py::test_(acknowledged|an_extended|a_message|in_order)"),
    re.compile(r"test_java_store\.py::(?!test_a_golden_store.*-clean)"),
    re.compile(r"test_java_opens_ours\.py::(?!test_java_finds_every_message.*closed).*5\.5\.0"),
    re.compile(r"test_admin\.py::test_a_running_group_is_shown_and_reset"),
    re.compile(r"test_retry\.py::test_(reconsume_times_grow|a_delayed_message_is_delivered)"),
    re.compile(r"test_spark_live\.py::test_rows_equal_those_of_the_store"),
    re.compile(r"test_java_opens_ours\.py::test_both_write_alternately"),
    re.compile(
        r"test_salvage\.py::test_java_opens_a_salvaged_store_and_finds_every_message.*-holes\]"
    ),
    re.compile(r"test_import\.py::test_consumers_of_the_official_broker"),
    re.compile(r"test_access\.py::test_mqadmin_prints_the_same"),
    re.compile(r"test_folders_both_ways\.py::"),
    re.compile(r"test_rocksdb_stores\.py::"),
    re.compile(r"test_move\.py::test_a_folder"),
    re.compile(r"test_spark_sink\.py::.*4\.9\.7-5\.5\.0"),
    re.compile(r"test_assign\.py::.*\[5\.5\.0"),
    re.compile(r"test_java_clients_on_reput\.py::(?!test_sent_messages_are_read.*sync).*5\.5\.0"),
    re.compile(r"test_dispatch\.py::test_java_reads_a_rebuilt_store.*\[4\.9\.7"),
    re.compile(r"test_same_bytes\.py::.*\[5\.5\.0"),
    re.compile(r"test_timer\.py::test_java_sends_with_each_time_property"),
    re.compile(r"test_producer\.py::test_sending_survives_a_restart"),
    re.compile(r"test_producer\.py::.*4\.9\.7-5\.5\.0"),
    re.compile(r"test_producer_decisions\.py::test_java_decodes_address_and_time.*\[4\.9\.7"),
    re.compile(r"test_signing\.py::test_fields_and_signature.*\[4\.9\.7"),
    re.compile(r"test_namespace\.py::.*\[4\.9\.7"),
    re.compile(r"test_batch\.py::test_java_encodes_the_same_bytes\[4\.9\.7"),
    re.compile(r"test_follow\.py::test_queues_and_index_equal"),
    re.compile(r"test_namesrv\.py::test_a_broker_registers_and_disappears"),
    re.compile(r"test_clients_of_others\.py::test_messages_are_redelivered_or_delayed"),
    re.compile(r"test_consumers\.py::test_a_copy_is_sent_if_the_broker_refuses_a_send_back"),
    re.compile(r"test_consumers\.py::.*4\.9\.7-5\.5\.0"),
    re.compile(r"test_admin\.py::.*4\.9\.7-5\.5\.0"),
    re.compile(r"test_reply\.py::test_(java_replies_to_java|a_request_without_replier)"),
    re.compile(r"test_salvage\.py::test_consumers_of_the_official_broker"),
    re.compile(r"test_reset\.py::test_a_reset_moves_a_group_without_members"),
    re.compile(r"test_transactions\.py::test_a_restarted_broker_continues_its_checks"),
    re.compile(r"test_tls\.py::test_java_clients_in_test_mode"),
    re.compile(r"mqadmin/test_(groups|sending)\.py::test_(groups_are_monitored|send_times)"),
    re.compile(r"test_boards\.py::.*\[java"),
    re.compile(r"test_tls\.py::test_a_java_client_without_tls"),
    re.compile(r"test_proxy\.py::test_an_sdk_with(?!_the_credentials_of_a_user\[reput)"),
    re.compile(r"test_namespaced_clients\.py::"),
    re.compile(r"test_signed_clients\.py::(test_java|.*-2\.0-cpp)"),
    re.compile(r"test_trace\.py::test_traces_of_java_clients"),
    re.compile(r"test_plain_broker\.py::(?!test_java_clients_sign)"),
    re.compile(r"test_sql92\.py::(?!test_random_expressions)"),
    re.compile(r"test_retry\.py::test_both_brokers"),
    re.compile(r"test_java_opens_ours\.py::test_java_reads_(a_store|queues|rebuilt)"),
    re.compile(r"test_local_broker\.py::.*\[5\.5\.0"),
    re.compile(r"test_clients_of_others\.py::test_sent_messages_are_consumed.*-in-order"),
    re.compile(r"test_(message_decoder|store_config|put_statuses|java_store)\.py::.*\[4\.9\.7"),
    re.compile(r"test_transactions\.py::test_every_transaction.*-ByPython"),
    re.compile(r"test_sdks\.py::test_a_push_consumer_is_shown"),
    re.compile(r"test_secured\.py::"),
    re.compile(r"test_zeros_in_queues\.py::"),
    re.compile(r"test_import\.py::test_java_sees_no_message"),
    re.compile(r"test_restore\.py::"),
    re.compile(r"test_same_bytes\.py::(?!test_all_files)"),
    re.compile(r"test_forbidden\.py::"),
)


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
    """Group the tests for the workers, and skip slow tests unless ``REPUT_INTEROP`` is ``all``."""
    is_slow = pytest.mark.skip(reason="make interop-all: slow, and tested in other ways")
    for item in items:
        here = Path(__file__).parent
        if here not in item.path.parents:
            continue
        name = item.path.relative_to(here).with_suffix("").parts[0]
        if name in WITH_CLUSTERS:
            item.add_marker(pytest.mark.xdist_group(name))
        if not java_oracle.wants_all_versions() and any(
            pattern.search(item.nodeid) for pattern in ONLY_WITH_ALL
        ):
            item.add_marker(is_slow)


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

    The oracle is closed at the end of the module.
    """
    with contextlib.ExitStack() as stack:

        def start(kind: type[AnyOracle], version: str) -> AnyOracle:
            return stack.enter_context(_running(kind, version, tmp_path_factory))

        yield start


@pytest.fixture(scope="session", params=VERSIONS)
def oracle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    with _running(Oracle, request.param, tmp_path_factory) as process:
        yield process


@pytest.fixture(scope="session", params=VERSIONS)
def table_oracle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    with _running(TableOracle, request.param, tmp_path_factory) as process:
        yield process


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
