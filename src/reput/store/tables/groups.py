"""The table of consumer groups, subscriptionGroup.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reput.store.files import paths
from reput.store.tables import config_tables
from reput.store.tables.config_tables import Table
from reput.store.tables.saved_table import NamedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroup:
    """An entry of subscriptionGroup.json: the members that every version has, and some of 5.x."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_count: int = 1
    retry_max: int = 16
    """Attempts before a message becomes a dead letter."""
    broker_id: int = 0
    slow_broker_id: int = 1
    """Id of the broker to pull from when this one is slow."""
    notify_members_enable: bool = True
    # Members of 5.x, which are kept and shown here.
    consume_orderly: bool = False
    consume_timeout_minute: int = 15
    sys_flag: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    retry_policy: Mapping[str, Any] | None = None
    """Policy for redelivery to clients of gRPC proxies: ``type`` and its parameters, as JSON."""
    subscriptions: Sequence[Mapping[str, Any]] | None = None
    """Permitted subscriptions, as JSON; None permits any."""


class SubscriptionGroupTable(NamedTable[SubscriptionGroup]):
    """subscriptionGroup.json: the consumer groups, by name."""

    path = paths.SUBSCRIPTION_GROUPS
    entries_member = "subscriptionGroupTable"

    def _entry(self, name: str, value: Table) -> SubscriptionGroup:
        return _group(name, value)

    def _merged(self, entry: SubscriptionGroup, stored: Table) -> Table:
        return _group_entry(entry, stored)

    def delete(self, name: str, now_ms: int) -> bool:
        """Remove a group and its forbidden operations; return whether it existed."""
        self._set_forbidden(name, {})
        return super().delete(name, now_ms)

    def forbidden(self, group: str, topic: str) -> int:
        """Return the operations that a group must not do in a topic, as bits of a permission."""
        return int(self._forbidden().get(group, {}).get(topic, 0))

    def all_forbidden(self) -> dict[str, dict[str, int]]:
        """Return group -> topic -> bits, as a copy."""
        return {group: dict(topics) for group, topics in self._forbidden().items()}

    def forbid(self, group: str, topic: str, bits: int, now_ms: int) -> None:
        """Set the forbidden operations of a group in a topic, as bits of a permission."""
        if self.forbidden(group, topic) != bits:
            topics = {**self._forbidden().get(group, {}), topic: bits}
            self._set_forbidden(group, {key: value for key, value in topics.items() if value})
            self._version_changed(now_ms)

    def copy_forbidden(self, by_group: dict[str, dict[str, int]]) -> bool:
        """Replace all forbidden operations; the version stays. Return whether any changed."""
        by_group = {group: topics for group, topics in by_group.items() if topics}
        if self.all_forbidden() == by_group:
            return False
        self._members["forbiddenTable"] = by_group
        self.is_dirty = True
        self.change_count += 1
        self._versioned_changes = self.change_count
        return True

    def _forbidden(self) -> Table:
        return config_tables.member(self._members, "forbiddenTable", self.path)

    def _set_forbidden(self, group: str, topics: Table) -> None:
        table = {**self._forbidden(), group: topics}
        if topics or group in self._forbidden():
            self._members["forbiddenTable"] = {key: value for key, value in table.items() if value}


def _group(name: str, value: Table) -> SubscriptionGroup:
    settings: dict[str, Any] = {
        **{_GROUP_FLAGS[key]: _flag(flag) for key, flag in value.items() if key in _GROUP_FLAGS},
        **{_GROUP_NUMBERS[key]: int(n) for key, n in value.items() if key in _GROUP_NUMBERS},
    }
    for key, attribute in _GROUP_OF_5.items():
        if value.get(key) is not None:
            settings[attribute] = value[key]
    attributes = value.get("attributes") or {}
    settings["attributes"] = tuple(
        sorted((str(key), str(text)) for key, text in attributes.items())
    )
    return SubscriptionGroup(name=name, **settings)


def _group_entry(group: SubscriptionGroup, stored: Table) -> Table:
    names = {**_GROUP_FLAGS, **_GROUP_NUMBERS}
    entry = {"groupName": group.name, **{key: getattr(group, name) for key, name in names.items()}}
    of_5 = {key: getattr(group, field) for key, field in _GROUP_OF_5.items()}
    of_5["attributes"] = dict(group.attributes)
    usual = {key: getattr(_USUAL_GROUP, field) for key, field in _GROUP_OF_5.items()}
    # 4.x has none of these.
    return entry | {
        key: value for key, value in of_5.items() if value != usual.get(key, {}) or key in stored
    }


_GROUP_FLAGS = {
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "notifyConsumerIdsChangedEnable": "notify_members_enable",
}
_GROUP_NUMBERS = {
    "retryQueueNums": "retry_queue_count",
    "retryMaxTimes": "retry_max",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "slow_broker_id",
}
_GROUP_OF_5 = {
    "consumeMessageOrderly": "consume_orderly",
    "consumeTimeoutMinute": "consume_timeout_minute",
    "groupRetryPolicy": "retry_policy",
    "groupSysFlag": "sys_flag",
    "subscriptionDataSet": "subscriptions",
}
_USUAL_GROUP = SubscriptionGroup(name="")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value
