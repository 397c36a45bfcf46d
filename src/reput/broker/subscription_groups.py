"""The settings of consumer groups: what subscriptionGroup.json says, and how groups come to be."""

from collections.abc import Callable

from reput.broker.config import BrokerConfig
from reput.format import names
from reput.store.table_files import SubscriptionGroup, SubscriptionGroupTable


class SubscriptionGroups:
    """The table of groups.

    Args:
        table: What is saved.
        config: Whether groups come to be by themselves.
        on_change: Called when a group was changed or deleted.
    """

    def __init__(
        self,
        table: SubscriptionGroupTable,
        config: BrokerConfig,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.table = table
        self.config = config
        self._on_change = on_change

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
        group = self.table.get(name)
        is_allowed = self.config.auto_create_subscription_group or name.startswith(
            names.SYSTEM_GROUP_PREFIX
        )
        if group is None and name and is_allowed:
            group = SubscriptionGroup(name=name)
            self.table.put(group, now_ms)
        return group

    def get(self, name: str) -> SubscriptionGroup | None:
        """Return a group, or None."""
        return self.table.get(name)

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
