import pytest
from hypothesis import given, strategies as st

from reput.client.core import namespace

NAMES = st.text("abcXYZ_-", min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("Orders", "tenant%Orders"),
        ("%RETRY%group", "%RETRY%tenant%group"),
        ("%DLQ%group", "%DLQ%tenant%group"),
        ("tenant%Orders", "tenant%Orders"),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ],
)
def test_wrap_adds_the_namespace(name: str, full: str) -> None:
    assert namespace.wrap("tenant", name) == full


@given(NAMES, NAMES, st.sampled_from(["", "%RETRY%", "%DLQ%"]))
def test_unwrap_returns_the_original_name(tenant: str, name: str, prefix: str) -> None:
    assert namespace.unwrap(tenant, namespace.wrap(tenant, prefix + name)) == prefix + name


@given(NAMES)
def test_names_without_a_namespace_are_unchanged(name: str) -> None:
    assert namespace.wrap("", name) == namespace.unwrap("", name) == name
