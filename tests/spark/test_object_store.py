"""Stores at ``s3://`` URIs on an S3-compatible server: reads, jobs, errors, and the number of
requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import golden
from reput.errors import StoreUnavailable
from reput.spark.jobs.archive import archive, verify
from reput.spark.jobs.audit import audit
from reput.spark.jobs.dispatch import dispatch
from reput.spark.jobs.restore import restore
from reput.spark.jobs.salvage import salvage
from reput.store.files import paths
from reput.store.files.files import open_folder
from reput.store.reader import StoreReader
from spark import reading
from spark.dispatch_setting import assert_same
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


def queue_files() -> int:
    store = golden.unpack(VERSION, NAME)
    return sum(path.is_file() for path in (store / paths.CONSUME_QUEUE).rglob("*"))


# --- reading --------------------------------------------------------------


@pytest.mark.parametrize("scan", ["log", "consumequeue"])
@pytest.mark.sampled(2)
def test_rows_equal_those_of_the_folder(scan: str, server: ObjectStore, uri: str) -> None:
    """Planning reads the ends of queues, a worker the log: two requests a file, size and bytes."""
    options = {"readIsolation": "all", "scan": scan}
    planner = reading.scan(uri, **options)
    tasks = planner.tasks()
    assert len(server.requests) <= 2 * queue_files() + 15
    server.requests.clear()
    rows = reading.rows_of(planner, tasks)
    assert reading.Read(rows, tasks, "").messages == (
        reading.read(golden.unpack(VERSION, NAME), **options).messages
    )
    if scan == "log":
        log_files = len(golden.log_files(golden.unpack(VERSION, NAME)))
        assert len(server.requests) <= 2 * log_files + 8 * len(tasks)
        fetched = [
            request.path
            for request in server.requests
            if request.range is not None and "commitlog" in request.path
        ]
        assert len(fetched) == len({*fetched})


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


def test_errors_of_uris(server: ObjectStore) -> None:
    uri = server.uri("bucket/store")
    unreachable = "s3://bucket/store?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    missing = "does not exist; give the folder that contains commitlog/"
    for where, text in (
        (server.uri("nosuch/store"), "cannot be reached.*NO_SUCH_BUCKET"),
        (server.uri("bucket/nosuch"), missing),
        (server.uri("bucket/store/checkpoint"), missing),
        (server.uri("bucket/store/commitlog"), "is no store: it has no folder commitlog"),
        (uri.replace("://", "://AKIAREADER:hush@"), "AWS_SECRET_ACCESS_KEY"),
        (unreachable, "NETWORK_CONNECTION.*connect to server"),
        ("hdfs://namenode:8020/store", r"hdfs needs Java and Hadoop's libhdfs\.so"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
            for name in ("HADOOP_HOME", "JAVA_HOME"):
                patch.delenv(name, raising=False)
            with pytest.raises(StoreUnavailable, match=text) as caught:
                StoreReader.open(where)
        assert "hush" not in str(caught.value)
    text = "cannot be reached.*INVALID_ACCESS_KEY_ID"
    with server.demanding_credentials(), pytest.raises(StoreUnavailable, match=text):
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
def test_other_jobs_read_a_store_at_a_uri(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    store, config = golden.unpack(VERSION, NAME), settings(VERSION, NAME)
    dispatch(spark, uri, config=config, target=str(tmp_path / "made"), range_bytes=200_000)
    assert_same(tmp_path / "made", store, [paths.CONSUME_QUEUE])
    assert audit(spark, uri, config=config).messages == len(golden.messages(VERSION, NAME))
    for source, name in ((uri, "afar"), (str(store), "here")):
        salvage(InProcess(), source, str(tmp_path / name), config=config)
    families = (paths.COMMIT_LOG, paths.CONSUME_QUEUE, paths.INDEX)
    assert_same(tmp_path / "afar", tmp_path / "here", families)


# --- Spark ----------------------------------------------------------------
