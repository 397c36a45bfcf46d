"""The settings of consumer groups: what subscriptionGroup.json says, and how groups come to be."""

from reput.broker.config import BrokerConfig
from reput.store.table_files import SubscriptionGroup, SubscriptionGroupTable

BUILT_IN = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
_BROADCASTS = frozenset({"CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION",
                         "CID_ONSAPI_OWNER"})  # fmt: skip
SYSTEM_PREFIX = "CID_RMQ_SYS_"


class SubscriptionGroups:
    """The table of groups.

    Args:
        table: What is saved.
        config: Whether groups come to be by themselves.
    """

    def __init__(self, table: SubscriptionGroupTable, config: BrokerConfig) -> None:
        self.table = table
        self.config = config

    def add_built_in(self, now_ms: int) -> None:
        """Make the groups that every broker has; those that exist stay as they are."""
        for name in BUILT_IN:
            if self.table.get(name) is None:
                group = SubscriptionGroup(name=name, consume_broadcast_enable=name in _BROADCASTS)
                self.table.put(group, now_ms)

    def find(self, name: str, now_ms: int) -> SubscriptionGroup | None:
        """Return a group, made if that is allowed; None if there is none."""
        group = self.table.get(name)
        is_allowed = self.config.auto_create_subscription_group or name.startswith(SYSTEM_PREFIX)
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

    def delete(self, name: str, now_ms: int) -> bool:
        """Remove a group; return whether it was there."""
        return self.table.delete(name, now_ms)
