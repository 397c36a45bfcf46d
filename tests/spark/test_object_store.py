"""Stores at ``s3://`` URIs on an S3-compatible server: reads, jobs, errors, and the number of
requests."""

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import golden
from reput.errors import ReputError, StoreUnavailable
from reput.spark.jobs.archive import archive, verify
from reput.spark.jobs.audit import audit
from reput.spark.jobs.dispatch import dispatch
from reput.spark.jobs.restore import restore
from reput.spark.jobs.salvage import salvage
from reput.store.files import paths
from reput.store.files.files import open_folder
from reput.store.reader import StoreReader
from spark import reading
from spark.in_process import InProcess
from spark.jobs_setting import settings
from spark.object_store import ENVIRONMENT, ObjectStore

pytestmark = pytest.mark.filterwarnings("ignore")

VERSION, NAME = "4.9.7", "clean"


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch, ObjectStore() as started:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        started.make_bucket("bucket")
        started.upload(golden.unpack(VERSION, NAME), "bucket/store")
        yield started


@pytest.fixture
def uri(server: ObjectStore) -> str:
    server.requests.clear()
    return server.uri("bucket/store")


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def queue_files() -> int:
    store = golden.unpack(VERSION, NAME)
    return sum(path.is_file() for path in (store / paths.CONSUME_QUEUE).rglob("*"))


# --- reading --------------------------------------------------------------


@pytest.mark.parametrize("scan", ["log", "consumequeue"])
@pytest.mark.sampled(2)
def test_rows_equal_those_of_the_folder(scan: str, uri: str) -> None:
    options = {"readIsolation": "all", "scan": scan}
    got = reading.read(uri, **options)
    assert got.messages == reading.read(golden.unpack(VERSION, NAME), **options).messages != []


def test_a_scan_requests_each_file_once(server: ObjectStore, uri: str) -> None:
    """Planning reads the ends of queues, a worker the log: two requests a file, size and bytes."""
    planner = reading.scan(uri, scan="log")
    tasks = planner.tasks()
    assert len(server.requests) <= 2 * queue_files() + 15
    server.requests.clear()
    for task in tasks:
        executor, task = pickle.loads(pickle.dumps((planner, task)))
        assert sum(batch.num_rows for batch in executor.read(task))
    log_files = len(golden.log_files(golden.unpack(VERSION, NAME)))
    assert len(server.requests) <= 2 * log_files + 8 * len(tasks)
    fetched = [
        request
        for request in server.requests
        if request.range is not None and "commitlog" in request.path
    ]
    assert len(fetched) == len({request.path for request in fetched})


def test_a_lookup_requests_the_index_and_the_ends_of_queues(server: ObjectStore, uri: str) -> None:
    keyed = next(message for message in golden.messages(VERSION, NAME) if message["keys"])
    key = keyed["keys"].split(" ")[0]
    reader = StoreReader.open(uri)
    assert len(server.requests) <= 5
    hits = reader.messages_by_key(keyed["topic"], key)
    assert keyed["commitLogOffset"] in [hit.physical_offset for hit in hits.messages]
    index_files = len(list((golden.unpack(VERSION, NAME) / paths.INDEX).iterdir()))
    assert len(server.requests) <= 2 * (queue_files() + index_files) + 10
    server.requests.clear()
    again = reader.messages_by_key(keyed["topic"], key)
    assert again == hits
    assert server.requests == []


# --- errors -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nosuch/store", "cannot be reached.*NO_SUCH_BUCKET"),
        ("bucket/nosuch", "does not exist; give the folder that contains commitlog/"),
        ("bucket/store/checkpoint", "does not exist; give the folder that contains commitlog/"),
        ("bucket/store/commitlog", "is no store: it has no folder commitlog"),
    ],
)
def test_a_uri_without_a_store_is_an_error(path: str, problem: str, server: ObjectStore) -> None:
    with pytest.raises(StoreUnavailable, match=problem):
        StoreReader.open(server.uri(path))


def test_a_secret_in_a_uri_is_refused_and_hidden(uri: str) -> None:
    with pytest.raises(StoreUnavailable, match="AWS_SECRET_ACCESS_KEY") as caught:
        open_folder(uri.replace("://", "://AKIAREADER:hush@"))
    assert "hush" not in str(caught.value)


def test_an_unreachable_server_is_an_error(uri: str) -> None:
    address = "endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    with pytest.raises(StoreUnavailable, match=r"NETWORK_CONNECTION.*connect to server"):
        open_folder(f"s3://bucket/store?{address}")


def test_hdfs_without_libraries_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    for name in ("HADOOP_HOME", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreUnavailable, match=r"hdfs needs Java and Hadoop's libhdfs\.so"):
        open_folder("hdfs://namenode:8020/store")


def test_unknown_credentials_are_an_error(server: ObjectStore, uri: str) -> None:
    with (
        server.demanding_credentials(),
        pytest.raises(StoreUnavailable, match=r"cannot be reached.*INVALID_ACCESS_KEY_ID"),
    ):
        open_folder(uri)


# --- jobs ---------------------------------------------------------------


def test_a_store_is_restored_from_an_archive_at_a_uri(server: ObjectStore, tmp_path: Path) -> None:
    store, session = golden.unpack("4.9.7", "ext"), InProcess()
    server.upload(store, "bucket/ext")
    source, target = server.uri("bucket/ext"), server.uri("bucket/archive")
    archive(session, source, target, include_last=True)
    assert verify(session, target).is_whole
    got = reading.read(target, readIsolation="all")
    assert got.messages == reading.read(store, readIsolation="all").messages != []
    restore(session, target, str(tmp_path / "back"))
    back = {path.name: path.read_bytes() for path in golden.log_files(tmp_path / "back")}
    java = {path.name: path.read_bytes() for path in golden.log_files(store)}
    assert back == {name: java[name] for name in back} != {}


@pytest.mark.soak
def test_a_store_at_a_uri_is_salvaged(uri: str, tmp_path: Path) -> None:
    store, session = golden.unpack(VERSION, NAME), InProcess()
    for source, name in ((uri, "afar"), (str(store), "here")):
        salvage(session, source, str(tmp_path / name), config=settings(VERSION, NAME))
    for family in (paths.COMMIT_LOG, paths.CONSUME_QUEUE, paths.INDEX):
        afar, here = (files_of(tmp_path / name / family) for name in ("afar", "here"))
        assert afar == here != {}


# --- Spark ----------------------------------------------------------------


def rows(spark: SparkSession, path: Path | str, **options: Any) -> Counter[tuple[Any, ...]]:
    frame = spark.read.format("rocketmq").options(readIsolation="all", **options).load(str(path))
    names = ("topic", "queue_id", "queue_offset", "physical_offset", "body_crc")
    return Counter(tuple(row) for row in frame.select(*names).collect())


@pytest.mark.soak
def test_jobs_read_a_store_at_a_uri(
    spark: SparkSession, server: ObjectStore, uri: str, tmp_path: Path
) -> None:
    store, config = golden.unpack(VERSION, NAME), settings(VERSION, NAME)
    want = rows(spark, store)
    assert rows(spark, uri) == want != Counter()

    dispatch(spark, uri, config=config, target=str(tmp_path / "made"), range_bytes=200_000)
    made, java = (files_of(root / paths.CONSUME_QUEUE) for root in (tmp_path / "made", store))
    assert made == java


@pytest.mark.soak
def test_a_store_at_a_uri_is_audited(spark: SparkSession, uri: str) -> None:
    result = audit(spark, uri, config=settings(VERSION, NAME))
    assert result.messages == len(golden.messages(VERSION, NAME))


def test_spark_reports_errors_of_uris(spark: SparkSession, server: ObjectStore) -> None:
    missing = "does not exist; give the folder that contains commitlog/"
    with pytest.raises(Exception, match=missing) as error:
        spark.read.format("rocketmq").load(server.uri("bucket/nosuch")).count()
    assert not isinstance(error.value, ReputError)
