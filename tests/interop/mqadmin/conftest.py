"""The unmodified mqadmin with our name server and broker, and with the official ones.

Each command is run with both clusters, which contain the same messages. It must print the same
text, except for addresses, times, ids of messages and clients, offsets, and versions. Where the
text differs intentionally, the test documents it.

With ``REPUT_INTEROP=all`` all tests are repeated with access control in our broker, and tools and
clients of an admin: it must not change anything that an admin sees.
"""

import contextlib
from collections.abc import Iterator

import pytest

from interop import java_oracle
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage
from interop.mqadmin.sides import (
    TRACES,
    Both,
    Side,
    our_cluster,
    secured_settings,
    write_tools_file,
)
from interop.secured_cluster import ADMIN, ADMIN_SECRET

TOOLS = ("4.9.7", "5.5.0") if java_oracle.wants_all_versions() else ("4.9.7",)
CASES = [(version, False) for version in TOOLS]
"""Version of the tools and the official cluster, which has no access control; whether ours has."""
if java_oracle.wants_all_versions():
    CASES += [(version, True) for version in TOOLS]


def case_id(case: tuple[str, bool]) -> str:
    version, is_secured = case
    return f"{version}-secured" if is_secured else version


@pytest.fixture(scope="package", params=CASES, ids=case_id)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    version, is_secured = request.param
    folder = tmp_path_factory.mktemp("mqadmin")
    settings = secured_settings(version, folder / "home") if is_secured else {}
    keys = {"reput.accessKey": ADMIN, "reput.secretKey": ADMIN_SECRET} if is_secured else {}
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(
            _or_skip(lambda: JavaClient(version, folder / "java", properties=keys))
        )
        if is_secured:
            write_tools_file(folder / "java", ADMIN, ADMIN_SECRET)
        cluster = stack.enter_context(
            _or_skip(lambda: JavaCluster(version, folder / "official", TRACES))
        )
        namesrv, broker, conf = stack.enter_context(our_cluster(folder / "ours", settings))
        ours, official = Side(namesrv, broker, []), Side(cluster.namesrv, cluster.address, [])
        pair = Both(java, ours, official, conf, folder / "java", is_secured)
        for side in pair.sides:
            pair.run(side, "updateTopic", "-b", "BROKER", "-t", "Messages", "-r", "2", "-w", "2")
            with java.producer(side.namesrv) as producer:
                queues = producer.queues("Messages")
                for i in range(6):
                    message = JavaMessage("Messages", b"body%d" % i, tags="Tag", keys=f"key{i}")
                    side.sent += producer.send([message], queue=queues[i % 2])
        yield pair
