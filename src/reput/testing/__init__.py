"""RocketMQ for tests: name server and broker inside the test process, started in a moment.

    with LocalBroker() as mq:
        ...  # any client, at mq.namesrv_addr

``reput.testing.pytest_plugin`` has a fixture. Names are loaded on first use, to keep pytest's start
fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput.testing.local_broker import LocalBroker as LocalBroker

__all__ = ["LocalBroker"]


def __getattr__(name: str) -> Any:
    if name != "LocalBroker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from reput.testing.local_broker import LocalBroker

    return LocalBroker
