"""The rules of a user, and what they decide. Pure: nothing is read but the arguments.

A rule applies to a need if it covers the resource, has one of the actions, and lists the address of
the sender, or none. Rules of the default policy count only if none of the custom policy applies.
Among the applicable rules, the most exact one decides: a resource with a type before ``*``; a name,
then the longest beginning, then all of a type; and of equally exact ones, a denial.

Source: rocketmq 5.5.0 ``AclAuthorizationHandler``. 5.3 compares the last two the other way round.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

from reput.broker.access.rules import Need
from reput.errors import InvalidOption
from reput.format.access import Action, Decision, Resource, ResourcePattern, ResourceType
from reput.format.ip_address import Network, parse_address, parse_network


class Rule(NamedTuple):
    """Allows or denies actions on resources."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    source_ips: tuple[str, ...] = ()
    """Addresses, or networks such as ``10.0.0.0/8``; empty: any."""

    def applies(self, need: Need, address: str) -> bool:
        """Return whether the rule applies to a need of a sender."""
        return (
            self.resource.covers(need.type, need.name)
            and (Action.ALL in self.actions or not self.actions.isdisjoint(need.actions))
            and (not self.source_ips or is_within(address, self.source_ips))
        )

    @property
    def rank(self) -> tuple[bool, int, int, bool]:
        """Sort key: the smallest of the rules that apply decides."""
        resource = self.resource
        order = _ORDER[resource.pattern]
        is_allowed = self.decision is Decision.ALLOW
        return resource.type is ResourceType.ANY, order, -len(resource.name), is_allowed


_ORDER = {ResourcePattern.LITERAL: 0, ResourcePattern.PREFIXED: 1, ResourcePattern.ANY: 2}


class Acl(NamedTuple):
    """The rules of a user; at most one for each resource in each policy."""

    custom: tuple[Rule, ...] = ()
    default: tuple[Rule, ...] = ()

    def decide(self, need: Need, address: str) -> Decision | None:
        """Return the decision about a need of a sender; None if no rule applies."""
        if not need.actions:
            return None
        for rules in (self.custom, self.default):
            best = min(
                (rule for rule in rules if rule.applies(need, address)),
                key=lambda rule: rule.rank,
                default=None,
            )
            if best is not None:
                return best.decision
        return None


def merged(rules: Iterable[Rule], changes: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return rules with some replaced or added: a rule replaces the rule of the same resource."""
    by_resource = {rule.resource: rule for rule in rules}
    by_resource.update((rule.resource, rule) for rule in changes)
    return tuple(by_resource.values())


# --- addresses ----------------------------------------------------------------------


def is_within(address: str, source_ips: Iterable[str]) -> bool:
    """Return whether an address is one of these, or in one of these networks.

    Args:
        address: IP address; one of IPv6 may be in brackets.
        source_ips: Addresses and networks.
    """
    try:
        value = parse_address(address)
    except ValueError:
        return False
    return any(value in network(text) for text in source_ips)


@functools.lru_cache(maxsize=4096)
def network(text: str) -> Network:
    """Return the network of an address or CIDR text.

    Raises:
        InvalidOption: It is neither.
    """
    try:
        return parse_network(text, is_strict=False)
    except ValueError:
        allowed = "an address, or a network such as 10.0.0.0/8"
        raise InvalidOption("sourceIps", text, allowed) from None
