"""Fixtures for pytest: ``rocketmq``, a name server and a broker in the test process.

    def test_orders(rocketmq):
        send_orders(rocketmq.namesrv_addr)
        assert [message.body for message in rocketmq.messages("Orders")] == [b"one"]

All tests of a run share one broker, which starts with the first test that uses it; after each test
its topics and groups are deleted. A marked test gets a separate broker with its settings:
``@pytest.mark.rocketmq(flushDiskType="SYNC_FLUSH")``.

pytest finds the plugin by itself if reput is installed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from reput.testing.local_broker import LocalBroker


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "rocketmq(**settings): a name server and broker of the test's own, with these settings "
        "of a broker.conf",
    )


@pytest.fixture(scope="session")
def rocketmq_of_session() -> Iterator["LocalBroker"]:
    """Start the broker that tests share; nothing is deleted between tests."""
    from reput.testing import LocalBroker

    with LocalBroker() as shared:
        yield shared


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> Iterator["LocalBroker"]:
    """Provide a name server and broker without topics, for one test."""
    marker = request.node.get_closest_marker("rocketmq")
    if marker is not None:
        from reput.testing import LocalBroker

        with LocalBroker(settings=marker.kwargs) as own:
            yield own
        return
    shared: LocalBroker = request.getfixturevalue("rocketmq_of_session")
    yield shared
    shared.clear()
