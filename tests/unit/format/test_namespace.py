import re

import pytest
from hypothesis import given, strategies as st

from reput.format import namespace

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


@pytest.mark.parametrize(
    ("address", "name", "rest"),
    [
        ("http://MQ_INST_1_b.host:8080", "MQ_INST_1_b", "MQ_INST_1_b.host:8080"),
        ("http://host:8080", "", "http://host:8080"),
        ("MQ_INST_1_b.host:8080", "", "MQ_INST_1_b.host:8080"),
        ("10.0.0.5:9876;10.0.0.6:9876", "", "10.0.0.5:9876;10.0.0.6:9876"),
    ],
)
def test_the_address_of_an_instance_has_a_namespace(address: str, name: str, rest: str) -> None:
    assert namespace.of_endpoint(address) == (name, rest)


@given(NAMES, NAMES, st.sampled_from(["", "%RETRY%", "%DLQ%"]))
def test_the_pattern_matches_the_topics_of_a_namespace_only(
    tenant: str, name: str, prefix: str
) -> None:
    matches = re.compile(namespace.topic_pattern(tenant)).fullmatch
    assert matches(namespace.wrap(tenant, prefix + name))
    assert not matches(prefix + name)
    assert not matches(namespace.wrap(f"{tenant}-other", prefix + name))


@given(NAMES)
def test_names_without_a_namespace_are_unchanged(name: str) -> None:
    assert namespace.wrap("", name) == namespace.unwrap("", name) == name
