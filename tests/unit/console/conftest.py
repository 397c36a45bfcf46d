"""A console with a clock of the tests, and users."""

from pathlib import Path

import pytest

from reput.client.admin import Admin
from reput.clock import ManualClock
from reput.console.audit import AuditLog
from reput.console.cluster import WatchedCluster
from reput.console.parts import ConsoleParts
from reput.console.users import Account, make

NAMESRV = "127.0.0.1:9876"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def parts(clock: ManualClock, tmp_path: Path) -> ConsoleParts:
    """The parts of a console without users."""
    return ConsoleParts(
        clock, NAMESRV, WatchedCluster.of(Admin(NAMESRV), clock), AuditLog(tmp_path / "audit.jsonl")
    )


@pytest.fixture(scope="session")
def ann() -> Account:
    return make("ann", "admin", "correct horse")


@pytest.fixture
def parts_with_users(parts: ConsoleParts, ann: Account) -> ConsoleParts:
    """The parts of a console with an admin, ann, and a user of each other role without password."""
    others = [
        make("vic", "viewer", None),
        make("rob", "reader", None, topics=("Orders*",), groups=("billing-*",)),
        make("olga", "operator", None),
    ]
    parts.accounts = {account.user.name: account for account in (ann, *others)}
    return parts
