"""Which rule decides: compared with a model that orders all rules by pairwise comparison."""

import functools
import ipaddress

import pytest
from hypothesis import given, strategies as st

from reput.broker.access.policy import Acl, Rule, is_within, merged, network
from reput.broker.access.rules import Need
from reput.errors import InvalidOption
from reput.format.access import (
    Action,
    Decision,
    Resource,
    ResourcePattern,
    ResourceType,
    parse_resource,
)

ALLOW, DENY = Decision.ALLOW, Decision.DENY
ANYWHERE = "10.1.2.3"


def rule(text: str, actions: str, decision: Decision = ALLOW, *source_ips: str) -> Rule:
    chosen = frozenset(Action.parse(action) for action in actions.split("|"))
    return Rule(parse_resource(text), chosen, decision, source_ips)


def topic(name: str, *actions: Action) -> Need:
    return Need(ResourceType.TOPIC, name, frozenset(actions or (Action.PUB,)))


# --- the model: rocketmq 5.5.0 AclAuthorizationHandler, in words of the design --------------------


def compared(first: Rule, other: Rule) -> int:
    """Return a negative number if the first rule decides."""
    kinds = [rule.resource.type is ResourceType.ANY for rule in (first, other)]
    if kinds[0] != kinds[1]:
        return 1 if kinds[0] else -1
    patterns = [rule.resource.pattern for rule in (first, other)]
    if patterns[0] is not patterns[1]:
        for pattern in (ResourcePattern.LITERAL, ResourcePattern.PREFIXED):
            if pattern in patterns:
                return -1 if patterns[0] is pattern else 1
    if patterns[0] is ResourcePattern.PREFIXED:
        lengths = [len(rule.resource.name) for rule in (first, other)]
        if lengths[0] != lengths[1]:
            return lengths[1] - lengths[0]
    if first.decision is not other.decision:
        return -1 if first.decision is DENY else 1
    return 0


def model(acl: Acl, need: Need, address: str) -> Decision | None:
    for rules in (acl.custom, acl.default):
        matching = []
        for candidate in rules:
            kind, name, pattern = candidate.resource
            same_kind = kind in (ResourceType.ANY, need.type)
            same_name = {
                ResourcePattern.ANY: True,
                ResourcePattern.LITERAL: need.name == name,
                ResourcePattern.PREFIXED: need.name[: len(name)] == name,
            }[pattern]
            has_action = Action.ALL in candidate.actions or candidate.actions & need.actions
            is_here = not candidate.source_ips or any(
                ipaddress.ip_address(address) in ipaddress.ip_network(text)
                for text in candidate.source_ips
            )
            if same_kind and same_name and has_action and is_here:
                matching.append(candidate)
        if matching:
            return min(matching, key=functools.cmp_to_key(compared)).decision
    return None


RESOURCES = [
    Resource(ResourceType.ANY, "", ResourcePattern.ANY),
    *(parse_resource(f"{kind}:{name}") for kind in ("Topic", "Group") for name in
      ("a", "ab", "a*", "ab*", "*", "b")),
]  # fmt: skip
RULES = st.builds(
    Rule,
    st.sampled_from(RESOURCES),
    st.frozensets(st.sampled_from([Action.PUB, Action.SUB, Action.ALL]), min_size=1),
    st.sampled_from(list(Decision)),
    st.sampled_from([(), ("10.0.0.0/8",), ("192.168.0.1",), ("192.168.0.1", "10.1.2.3")]),
)
NEEDS = st.builds(
    Need,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from(["a", "ab", "abc", "b", "c"]),
    st.frozensets(st.sampled_from([Action.PUB, Action.SUB, Action.GET]), min_size=1),
)
ACLS = st.builds(
    Acl, st.lists(RULES, max_size=6).map(tuple), st.lists(RULES, max_size=3).map(tuple)
)


@given(ACLS, NEEDS, st.sampled_from(["10.1.2.3", "192.168.0.1", "8.8.8.8"]))
def test_the_model_decides_the_same(acl: Acl, need: Need, address: str) -> None:
    assert acl.decide(need, address) is model(acl, need, address)


# --- single rules of the order --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        ([rule("Topic:ab", "Pub", DENY), rule("Topic:a*", "Pub")], DENY),
        ([rule("Topic:a*", "Pub", DENY), rule("Topic:ab*", "Pub")], ALLOW),
        ([rule("Topic:*", "All", DENY), rule("Topic:a*", "Pub")], ALLOW),
        ([rule("*", "All"), rule("Topic:*", "All", DENY)], DENY),
        ([rule("*", "All", DENY), rule("Topic:*", "Pub")], ALLOW),
        ([rule("Topic:ab", "Sub")], None),
        ([rule("Group:ab", "Pub")], None),
        ([rule("Topic:ab", "All")], ALLOW),
        ([rule("Topic:ab", "Pub", ALLOW, "10.1.2.4")], None),
        ([rule("Topic:ab", "Pub", DENY, "10.1.2.4"), rule("*", "Pub")], ALLOW),
        ([], None),
    ],
)
def test_the_most_exact_rule_decides(rules: list[Rule], decision: Decision | None) -> None:
    assert Acl(tuple(rules)).decide(topic("ab"), ANYWHERE) is decision


def test_default_rules_count_only_without_custom_ones() -> None:
    default = (rule("Topic:*", "All"),)
    assert Acl((), default).decide(topic("ab"), ANYWHERE) is ALLOW
    assert Acl((rule("*", "Sub"),), default).decide(topic("ab"), ANYWHERE) is ALLOW
    assert Acl((rule("*", "All", DENY),), default).decide(topic("ab"), ANYWHERE) is DENY


def test_no_rule_grants_what_is_for_super_users() -> None:
    need = Need(ResourceType.UNKNOWN, "", frozenset())
    assert Acl((rule("*", "All"),)).decide(need, ANYWHERE) is None


def test_a_rule_replaces_that_of_its_resource() -> None:
    old = [rule("Topic:a", "Pub"), rule("Topic:b", "Pub")]
    new = [rule("Topic:a", "Sub", DENY), rule("Topic:a*", "Pub")]
    assert merged(old, new) == (new[0], old[1], new[1])


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "text", "is_in"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.9/24", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("[::1]", "::1", True),
        ("[::1]", "0:0:0:0:0:0:0:1", True),
        ("[2001:DB8::5]", "2001:db8::/32", True),
        ("[::ffff:10.1.2.3]", "10.1.2.3", True),
        ("10.1.2.3", "::ffff:10.1.2.3", True),
        ("10.1.2.3", "::ffff:10.0.0.0/104", True),
        ("10.1.2.3", "::/0", False),
        ("[fe80::1%eth0]", "fe80::/10", True),
        ("", "0.0.0.0/0", False),
        ("elsewhere", "0.0.0.0/0", False),
    ],
)
def test_addresses_are_compared_by_value(address: str, text: str, *, is_in: bool) -> None:
    assert is_within(address, [text]) is is_in


@pytest.mark.parametrize("text", ["", "x", "300.1.1.1", "10.0.0.0/33", "192.168.1.*", "1.2.3"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidOption, match="sourceIps"):
        network(text)


# --- texts of resources ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["*", "Topic:a", "Topic:a*", "Topic:*", "Group:g-1", "Cluster:C", "Namespace:n", "Topic:a:b"],
)
def test_resources_are_written_as_they_are_read(text: str) -> None:
    assert parse_resource(text).text == text
    if ":" in text:
        kind, _, name = text.partition(":")
        assert parse_resource(f"{kind.lower()}:{name}").text == text


@pytest.mark.parametrize("text", ["", "Topic", "Topic:", "Odd:a", "Any:a", "Unknown:a", ":a", "**"])
def test_what_is_no_resource(text: str) -> None:
    with pytest.raises(InvalidOption, match="resource"):
        parse_resource(text)
