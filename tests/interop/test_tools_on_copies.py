"""mqadmin on brokers over a salvaged store and over a restored one: ours and the official one.

Both brokers get a copy of the same folder; the tool must print the same with each of them, and
match the contents of the folder.
"""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import golden
from interop.java_cluster import JavaClient, JavaCluster
from interop.mqadmin.sides import Both, Side
from interop.test_salvage import salvaged
from reput.spark.jobs.archive import archive
from reput.spark.jobs.restore import restore
from reput_cluster import ReputCluster
from spark.in_process import InProcess

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

TOPICS = ("GoldenOne", "GoldenFour", "GoldenSixteen")
PLACE = re.compile(r"queueId=(\d+), storeSize=(\d+), queueOffset=(\d+),.* commitLogOffset=(\d+)")
GROUPS = ("CG_Offsets", "CG_Lag", "CG_Order", "CG_Retry")


def from_salvage(version: str, folder: Path) -> Path:
    """Return a salvaged store that lacks some messages and a log file."""
    return salvaged(version, folder, has_gap=True)[0]


def from_archive(version: str, folder: Path) -> Path:
    """Return a store that was restored from an archive."""
    target = folder / "cluster" / "store"
    target.parent.mkdir()
    source = golden.unpack(version, "clean")
    archive(InProcess(), str(source), str(folder / "archive"), include_last=True)
    restore(InProcess(), str(folder / "archive"), str(target))
    return target


@pytest.fixture(scope="module", params=[from_salvage, from_archive], ids=["salvaged", "restored"])
def both(
    request: pytest.FixtureRequest,
    java_client: JavaClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Both]:
    if java_client.version == "4.5.2":
        pytest.skip("no such case: only with the tools of 4.9.7 and 5.5.0")
    make: Callable[[str, Path], Path] = request.param
    version = java_client.version
    ours = make(version, tmp_path_factory.mktemp("made")).parent
    theirs = ours.with_name("official")
    shutil.copytree(ours, theirs)
    settings = golden.manifest(version, "clean")["config"]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(ReputCluster(ours, settings)),
            stack.enter_context(JavaCluster(version, theirs, settings)),
        ]
        sides = [Side(cluster.namesrv, cluster.address, []) for cluster in running]
        yield Both(java_client, *sides, ours / "broker.conf", theirs)


@pytest.mark.parametrize("topic", TOPICS)
def test_topic_status_and_messages_are_equal(both: Both, topic: str) -> None:
    # 4.9 leaves out read-only queues.
    text = both.prints("topicStatus", "-t", topic, without=r"^broker-a [67] ")
    assert text.count("broker-a ") > 0
    printed = [both.run(side, "printMsg", "-t", topic, "-d", "false") for side in both.sides]
    ours, official = (PLACE.findall(text) for text in printed)
    # In a salvaged store the next message takes the place of a lost one: Java returns it twice.
    assert sorted(ours) == sorted(set(official))
    assert len(ours) > 10


@pytest.mark.parametrize("group", GROUPS)
def test_progress_of_groups_is_equal(both: Both, group: str) -> None:
    both.prints("consumerProgress", "-g", group, is_sorted=True)


def test_messages_are_found_by_key(both: Both) -> None:
    for message in golden.messages(both.java.version, "clean")[:12]:
        if message["topic"] in TOPICS and message["keys"]:
            asked = ("queryMsgByKey", "-t", message["topic"], "-k", message["keys"].split()[0])
            # Java repeats a message for each of its keys with the same hash.
            ours, official = (set(both.run(side, *asked).splitlines()) for side in both.sides)
            assert ours == official


def test_broker_status_is_equal(both: Both) -> None:
    ours, official = (both.table(side, "brokerStatus", "-b", "BROKER") for side in both.sides)
    assert {name for name in official.keys() - ours.keys() if "/" not in name} == set()
    for name in official:
        if name.startswith(("commitLogMinOffset", "dispatchBehind", "scheduleMessageOffset")):
            assert ours[name] == official[name]
