"""The needs of every request, as in the tables of access control 2.0."""

import pytest

from reput.broker.access.needs import NEEDS, Facts, needs_of
from reput.broker.access.rules import SUPER_NEED
from reput.broker.processors.table import PROCESSORS
from reput.format.command import Command

FACTS = Facts("C", record_at=lambda _: None, half_at=lambda _: None)


def test_every_processor_has_an_entry() -> None:
    assert set(NEEDS) == set(PROCESSORS)


@pytest.mark.parametrize("code", [0, -1, 13, 54, 999, 32767])
def test_a_code_without_an_entry_needs_a_super_user(code: int) -> None:
    assert needs_of(FACTS, Command(code)) == (SUPER_NEED,)
