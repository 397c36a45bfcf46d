"""A RocketMQ for tests: name server and broker inside the test process, up in a moment.

    with LocalBroker() as mq:
        ...  # any client, at mq.namesrv_addr

For pytest there is a fixture: ``reput.testing.pytest_plugin``. Names are loaded when they are first
used, so that pytest does not wait for what a run may not need.
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
