"""RocketMQ for tests: name server and broker inside the test process, started in a moment.

    with LocalBroker() as mq:
        ...  # any client, at mq.namesrv_addr

``reput.testing.pytest_plugin`` has a fixture. Names are loaded on first use, to keep pytest's start
fast.
"""

from typing import TYPE_CHECKING, Any

from reput.extras import extra_missing

if TYPE_CHECKING:
    from reput.testing.local_broker import LocalBroker as LocalBroker

__all__ = ["LocalBroker"]


def __getattr__(name: str) -> Any:
    if name != "LocalBroker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from reput.testing.local_broker import LocalBroker
    except ModuleNotFoundError as error:
        raise extra_missing("LocalBroker", error) or error from error
    return LocalBroker
