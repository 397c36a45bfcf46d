"""A folder that follows the log of a running official broker."""

from pathlib import Path

import pytest

from interop import java_cluster
from interop.conftest import StartOfficial
from interop.java_cluster import SMALL_FILES
from reput import config
from reput.client import blocking
from reput.client.message import Message
from reput.spark.jobs.dispatch.follow import Followed, run_follow
from reput.store.config import StoreConfig
from reput.store.files import paths
from spark.dispatch_setting import Here, files_of

pytestmark = [pytest.mark.interop, pytest.mark.rotating, pytest.mark.xdist_group("test_spark_live")]


@pytest.mark.parametrize("version", java_cluster.broker_versions())
def test_queues_and_index_equal_those_of_the_broker(
    version: str, start_official: StartOfficial, tmp_path: Path
) -> None:
    cluster = start_official(version)
    texts = {name: str(value) for name, value in SMALL_FILES.items()}
    store_config = config.load(StoreConfig, texts, environment={}).value
    rounds = iter((300, 500, 0))

    def more(_: Followed) -> bool:
        count = next(rounds)
        send(cluster.namesrv, count)
        return not count

    send(cluster.namesrv, 200)
    target = str(tmp_path / "followed")
    done = run_follow(
        Here(), str(cluster.store), target, config=store_config, poll_seconds=0, until=more
    )
    assert done.steps >= 3
    cluster.stop_broker()
    done = run_follow(
        Here(),
        str(cluster.store),
        target,
        config=store_config,
        until=lambda progress: progress.is_caught_up,
    )
    queues = files_of(cluster.store, paths.CONSUME_QUEUE)
    assert sum(path.startswith("Orders/") for path in queues) == 4
    assert files_of(Path(target), paths.CONSUME_QUEUE) == queues
    index = index_of(cluster.store, version)
    assert index_of(Path(target), version) == index != {}


def index_of(root: Path, version: str) -> dict[str, bytes]:
    """Return the index files without the count of used slots; 4.5.2 counts entries there."""
    index_files = files_of(root, paths.INDEX)
    if version != "4.5.2":
        return index_files
    return {path: data[:32] + data[36:] for path, data in index_files.items()}


def send(namesrv: str, count: int) -> None:
    with blocking.Producer("p", namesrv=namesrv) as producer:
        for number in range(count):
            producer.send(Message("Orders", bytes(1 + number % 90), keys=f"k{number % 7}"))
