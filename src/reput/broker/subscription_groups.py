"""The settings of consumer groups: what subscriptionGroup.json says, and how groups come to be."""

from collections.abc import Callable

from reput.broker import light_queues
from reput.broker.config import PERM_READ, BrokerConfig
from reput.errors import RequestRefused
from reput.format import names
from reput.format.codes import ResponseCode
from reput.store.table_files import SubscriptionGroup, SubscriptionGroupTable


class SubscriptionGroups:
    """The table of groups.

    Args:
        table: What is saved.
        config: Whether groups come to be by themselves.
        on_change: Called when a group was changed or deleted.
        has_light: Whether there is a group of each name of light queues.
    """

    def __init__(
        self,
        table: SubscriptionGroupTable,
        config: BrokerConfig,
        on_change: Callable[[], None] = lambda: None,
        *,
        has_light: bool = False,
    ) -> None:
        self.table = table
        self.config = config
        self._on_change = on_change
        self._has_light = has_light

    def add_built_in(self, now_ms: int) -> None:
        """Make the groups that every broker has; those that exist stay as they are."""
        for name in sorted(names.SYSTEM_GROUPS):
            if self.table.get(name) is None:
                group = SubscriptionGroup(
                    name=name, consume_broadcast_enable=name in names.BROADCAST_SYSTEM_GROUPS
                )
                self.table.put(group, now_ms)

    def find(self, name: str, now_ms: int) -> SubscriptionGroup | None:
        """Return a group, made if that is allowed; None if there is none."""
        group = self.get(name)
        is_allowed = self.config.auto_create_subscription_group or name.startswith(
            names.SYSTEM_GROUP_PREFIX
        )
        if group is None and name and is_allowed:
            group = SubscriptionGroup(name=name)
            self.table.put(group, now_ms)
        return group

    def check_consuming(self, name: str, now_ms: int) -> None:
        """Refuse a group that may not consume; it is made if that is allowed.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST, NO_PERMISSION.
        """
        group = self.find(name, now_ms)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist",
            )
        if not group.consume_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}"
            )

    def get(self, name: str) -> SubscriptionGroup | None:
        """Return a group, or None."""
        group = self.table.get(name)
        return light_queues.group_of(name) if group is None and self._has_light else group

    def is_forbidden(self, name: str, topic: str) -> bool:
        """Whether a group may not read a topic."""
        return bool(self.table.forbidden(name, topic) & PERM_READ)

    def forbid(self, name: str, topic: str, now_ms: int, *, is_forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it again.

        Java's broker, when it allows one topic, allows the group all others too.
        """
        bits = self.table.forbidden(name, topic)
        bits = bits | PERM_READ if is_forbidden else bits & ~PERM_READ
        self.table.forbid(name, topic, bits, now_ms)
        self._on_change()

    def all(self) -> dict[str, SubscriptionGroup]:
        """Return all groups by name."""
        return self.table.all()

    def put(self, group: SubscriptionGroup, now_ms: int) -> None:
        """Add or replace a group."""
        self.table.put(group, now_ms)
        self._on_change()

    def delete(self, name: str, now_ms: int) -> bool:
        """Remove a group; return whether it was there."""
        self._on_change()
        return self.table.delete(name, now_ms)
