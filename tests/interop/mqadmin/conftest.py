"""The unmodified mqadmin with our name server and broker, and with the official ones.

Each command is run with both clusters, which contain the same messages. It must print the same
text, except for addresses, times, ids of messages and clients, offsets, and versions. Where the
text differs intentionally, the test documents it.
"""

import contextlib
from collections.abc import Iterator

import pytest

from interop import java_oracle
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage
from interop.mqadmin.sides import TRACES, Both, Side, our_cluster

TOOLS = ("4.9.7", "5.5.0") if java_oracle.wants_all_versions() else ("4.9.7",)


@pytest.fixture(scope="package", params=TOOLS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("mqadmin")
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(_or_skip(lambda: JavaClient(request.param, folder / "java")))
        cluster = stack.enter_context(
            _or_skip(lambda: JavaCluster(request.param, folder / "official", TRACES))
        )
        namesrv, broker, conf = stack.enter_context(our_cluster(folder / "ours"))
        ours, official = Side(namesrv, broker, []), Side(cluster.namesrv, cluster.address, [])
        pair = Both(java, ours, official, conf, folder / "java")
        for side in pair.sides:
            pair.run(side, "updateTopic", "-b", "BROKER", "-t", "Messages", "-r", "2", "-w", "2")
            with java.producer(side.namesrv) as producer:
                queues = producer.queues("Messages")
                for i in range(6):
                    message = JavaMessage("Messages", b"body%d" % i, tags="Tag", keys=f"key{i}")
                    side.sent += producer.send([message], queue=queues[i % 2])
        yield pair
