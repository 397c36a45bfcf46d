"""Names with a namespace: those of Java's clients."""

import pytest

from interop.java_oracle import JavaOracle, Oracle
from interop.recorded_oracle import oracle_fixture
from reput.format import names, namespace

pytestmark = pytest.mark.interop

PLAIN = ("Orders", "a", "tenant", "tenant-2%Orders", "%", "x%y", "TBW102", "RMQ_SYS_TRACE_TOPIC")
NAMESPACES = ("", "tenant", "MQ_INST_1_b")


class NamespaceOracle(JavaOracle):
    """Running ``NamespaceOracle.java``."""

    main_class = "NamespaceOracle"


java = oracle_fixture(NamespaceOracle)


def pairs() -> list[tuple[str, str]]:
    # Those of transactions in RocksDB are new in 5.x.
    system = sorted(name for name in names.SYSTEM_TOPICS if "ROCKSDB" not in name)
    plain = [*PLAIN, *system, "CID_RMQ_SYS_x", "rmq_sys_x"]
    wrapped = [f"{space}%{name}" for space in NAMESPACES if space for name in PLAIN]
    prefixes = ("", names.RETRY_PREFIX, names.DLQ_PREFIX)
    return [
        (space, prefix + name)
        for space in NAMESPACES
        for prefix in prefixes
        for name in (*plain, *wrapped)
    ]


@pytest.mark.parametrize("command", ["wrap", "unwrap"])
def test_names_are_those_of_java(java: Oracle, command: str) -> None:
    ours = getattr(namespace, command)
    different = {
        (space, name): (ours(space, name), theirs)
        for (space, name), theirs in zip(pairs(), java.ask(command, pairs()), strict=True)
        if ours(space, name) != theirs
    }
    if java.version == "4.5.2":
        # It knows no system topic except TBW102, and would wrap the others.
        later = names.SYSTEM_TOPICS - {"TBW102"}
        different = {key: results for key, results in different.items() if key[1] not in later}
    assert different == {}
