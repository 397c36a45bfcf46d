"""acls.json: the rules of the users of access control 2.0.

    {"aclTable": {"User:alice": {"policies": [{"policyType": "Custom", "entries": [
        {"resource": "Topic:orders-*", "actions": ["Pub"], "sourceIps": [], "decision": "Allow"}
    ]}]}}}

The form of an entry is that of the requests and replies 3006 to 3010.
"""

from collections.abc import Iterable
from typing import Any

from reput.broker.access.policy import Acl, Rule, network
from reput.errors import CorruptRecord, InvalidOption
from reput.format.access import Action, Decision, PolicyType, parse_resource
from reput.store.files import paths
from reput.store.tables.config_tables import Table
from reput.store.tables.saved_table import SavedTable

USER_PREFIX = "User:"
"""Beginning of the subject of a user's rules."""


def subject_of(name: str) -> str:
    """Return the subject of a user's rules."""
    return USER_PREFIX + name


class AclTable(SavedTable):
    """The rules by subject."""

    path = paths.ACLS
    entries_member = "aclTable"
    is_secret = True
    _acls: dict[str, Acl]

    def __len__(self) -> int:
        return len(self._acls)

    def get(self, subject: str) -> Acl | None:
        """Return the rules of a subject; None if it has none."""
        return self._acls.get(subject)

    def all(self) -> list[tuple[str, Acl]]:
        """Return all subjects with their rules, by name."""
        return [(subject, self._acls[subject]) for subject in sorted(self._acls)]

    def put(self, subject: str, acl: Acl) -> None:
        """Set the rules of a subject."""
        self._acls[subject] = acl
        self._note(subject)

    def delete(self, subject: str) -> bool:
        """Remove all rules of a subject; return False if it has none."""
        if self._acls.pop(subject, None) is None:
            return False
        self._note(subject)
        return True

    def _note(self, subject: str) -> None:
        self._changed.add(subject)
        self.is_dirty = True
        self.change_count += 1

    def _decode(self, entries: Table) -> None:
        try:
            self._acls = {subject: acl_of(value) for subject, value in entries.items()}
        except (InvalidOption, KeyError) as error:
            raise CorruptRecord(f"not rules: {error}", file=self.path) from None
        self._changed = set(self._acls)

    def _stored_entry(self, key: str) -> Table | None:
        acl = self._acls.get(key)
        return None if acl is None else {"policies": policies_of(acl)}


def policies_of(acl: Acl) -> list[Table]:
    """Return the policies of rules as JSON."""
    return [
        {"policyType": kind.text, "entries": [_entry(rule) for rule in rules]}
        for kind, rules in ((PolicyType.CUSTOM, acl.custom), (PolicyType.DEFAULT, acl.default))
        if rules
    ]


def _entry(rule: Rule) -> Table:
    return {
        "resource": rule.resource.text,
        "actions": [action.text for action in sorted(rule.actions)],
        "sourceIps": list(rule.source_ips),
        "decision": rule.decision.text,
    }


def acl_of(value: Table) -> Acl:
    """Return rules from their form in the file or in a reply of a broker.

    Raises:
        InvalidOption: A text has no meaning.
        KeyError: A member is missing.
    """
    rules: dict[PolicyType, list[Rule]] = {PolicyType.CUSTOM: [], PolicyType.DEFAULT: []}
    for policy in value["policies"]:
        kind = PolicyType.parse(policy["policyType"])
        rules[kind] += [_rule(entry) for entry in policy["entries"]]
    return Acl(tuple(rules[PolicyType.CUSTOM]), tuple(rules[PolicyType.DEFAULT]))


def _rule(entry: dict[str, Any]) -> Rule:
    source_ips: Iterable[str] = entry.get("sourceIps") or ()
    for text in source_ips:
        network(text)
    return Rule(
        parse_resource(entry["resource"]),
        frozenset(Action.parse(text) for text in entry["actions"]),
        Decision.parse(entry["decision"]),
        tuple(source_ips),
    )
