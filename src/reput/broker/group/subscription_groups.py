"""The settings of consumer groups: subscriptionGroup.json, and creation of groups."""

import json
from collections.abc import Callable, Iterable

from reput.broker import limits, quotas
from reput.broker.quotas import OWN, AddressQuota, Reservation, Reservations
from reput.broker.settings.config import BrokerConfig
from reput.errors import LimitExceeded, RequestRefused
from reput.format import names
from reput.format.codes import PERM_READ, ResponseCode
from reput.store.tables.config_tables import Table
from reput.store.tables.groups import SubscriptionGroup, SubscriptionGroupTable


class SubscriptionGroups:
    """The table of consumer groups.

    Args:
        table: The saved table.
        config: Current settings, which allow or forbid automatic creation of groups.
        has_light: True if each name of a light queue is a group.
    """

    def __init__(
        self,
        table: SubscriptionGroupTable,
        config: BrokerConfig,
        *,
        has_light: bool = False,
    ) -> None:
        self.table = table
        self.config = config
        self.on_change: list[Callable[[], object]] = []
        """Called when a group was changed or deleted."""
        self._has_light = has_light
        self._made_by = AddressQuota()
        self._reserved = Reservations()
        self._settings_bytes = sum(_settings_bytes(entry) for entry in table.all().values())
        self._forbidden_count = sum(len(entry) for entry in table.all_forbidden().values())

    def add_built_in(self, now_ms: int) -> None:
        """Create the groups that every broker has; existing ones are not changed."""
        for name in sorted(names.SYSTEM_GROUPS):
            if self.table.get(name) is None:
                group = SubscriptionGroup(
                    name=name, consume_broadcast_enable=name in names.BROADCAST_SYSTEM_GROUPS
                )
                self.table.put(group, now_ms)

    def check_name(self, name: str) -> None:
        """Check the name of a group to create or use.

        Existing groups can have any name.

        Raises:
            RequestRefused: The name is not allowed; the message lists allowed characters.
        """
        if self.table.get(name) is not None:
            return
        if not name.strip():
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "The specified group is blank.")
        limit, shown = limits.GROUP_NAME_LETTERS, names.printable(name)
        if len(name) > limit.maximum:
            raise LimitExceeded(
                limit.name,
                f"The specified group: {shown}, is longer than group max length: {limit.maximum}",
                limit.response_code,
            )
        is_light = self._has_light and names.is_light(name)
        # Clients choose the names of light queues freely, as far as files can store them.
        if not (names.is_printable(name) if is_light else names.is_legal_group(name)):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"The specified group: {shown}, contains illegal characters, allowing only "
                "^[%|a-zA-Z0-9_-]+$",
            )

    def obtain(self, name: str, now_ms: int, address: str = OWN) -> SubscriptionGroup | None:
        """Return a group; create it if that is allowed. None if it does not exist.

        Args:
            name: Name of the group.
            now_ms: The time.
            address: Address of the client: the number of groups that it can create is limited.

        Raises:
            RequestRefused: The name is not allowed.
            LimitExceeded: There are too many groups, or too many created by this address.
        """
        group = self.table.get(name)
        if group is not None:
            return group
        self.check_name(name)
        group = self.get(name)
        if group is None and self.may_make(name):
            self.check_making([name], address)
            group = SubscriptionGroup(name=name)
            self.table.put(group, now_ms)
            self._made_by.add(address)
        return group

    def may_make(self, name: str) -> bool:
        """Return True if a group is created when a client uses it."""
        is_allowed = self.config.auto_create_subscription_group
        return is_allowed or name.startswith(names.SYSTEM_GROUP_PREFIX)

    def check_making(self, group_names: Iterable[str], address: str) -> None:
        """Refuse to create missing groups for a client beyond the limits.

        Raises:
            LimitExceeded: There would be too many groups, or too many created by this address.
        """
        new = {name for name in group_names if self.get(name) is None and self.may_make(name)}
        if not new:
            return
        config = self.config
        maximum = config.reput_auto_created_groups_max
        if len(self.table) + len(new) > maximum:
            raise quotas.exceeded(limits.AUTO_CREATED_GROUPS, maximum, min(new))
        self._made_by.check(
            address,
            limits.AUTO_CREATED_GROUPS_PER_ADDRESS,
            config.reput_auto_created_groups_per_address_max,
            len(new),
        )
        self.check_room([SubscriptionGroup(name=name) for name in new])

    def find(self, name: str, now_ms: int) -> SubscriptionGroup | None:
        """Return a group; create it if that is allowed. None if it cannot be created."""
        try:
            return self.obtain(name, now_ms)
        except RequestRefused:
            return None

    def check_consuming(self, name: str, now_ms: int, address: str = OWN) -> None:
        """Refuse a group that cannot consume; create it if that is allowed.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST, NO_PERMISSION, or a code of ``obtain``.
        """
        group = self.obtain(name, now_ms, address)
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
        if group is None and self._has_light and names.is_light(name):
            return SubscriptionGroup(name=name)  # of a light queue: see ``Topics``
        return group

    def is_forbidden(self, name: str, topic: str) -> bool:
        """Return True if a group is forbidden to read a topic."""
        return bool(self.table.forbidden(name, topic) & PERM_READ)

    def forbid(self, name: str, topic: str, now_ms: int, *, is_forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it.

        When Java's broker allows one topic, it allows all others too.

        Raises:
            LimitExceeded: Too many topics are forbidden.
        """
        known = self.table.forbidden(name, topic)
        bits = known | PERM_READ if is_forbidden else known & ~PERM_READ
        more = bool(bits) - bool(known)
        if more > 0:
            limits.FORBIDDEN_TOPICS.check(self._forbidden_count + more)
        self.table.forbid(name, topic, bits, now_ms)
        self._forbidden_count += more
        self._notify()

    def all(self) -> dict[str, SubscriptionGroup]:
        """Return all groups by name."""
        return self.table.all()

    def check_room(self, groups: Iterable[SubscriptionGroup]) -> None:
        """Refuse groups that exceed the limits of a broker, together with existing ones.

        Raises:
            LimitExceeded: There would be too many groups, or their settings would be too large.
        """
        self._check_room(groups)

    def reserve(self, groups: Iterable[SubscriptionGroup]) -> Reservation:
        """Check like ``check_room``, and reserve room for these groups until it is released.

        Raises:
            LimitExceeded: There would be too many groups, or their settings would be too large.
        """
        return self._reserved.reserve(*self._check_room(groups))

    def release(self, reservation: Reservation) -> None:
        """Release the rest of a reservation."""
        self._reserved.release(reservation)

    def _check_room(self, groups: Iterable[SubscriptionGroup]) -> tuple[int, int]:
        """Return the additional groups and bytes. Raises ``LimitExceeded``."""
        new_count, more = 0, 0
        for group in groups:
            size = _settings_bytes(group)
            limits.GROUP_SETTINGS_BYTES.check(size, group.name)
            known = self.table.get(group.name)
            new_count += known is None
            more += size - (0 if known is None else _settings_bytes(known))
        maximum = self.config.reput_groups_max
        groups_all = len(self.table) + self._reserved.count + new_count
        if new_count and groups_all > maximum:
            raise limits.GROUPS.at(maximum).exceeded(groups_all)
        if more > 0:
            size = self._settings_bytes + self._reserved.size + more
            limits.ALL_GROUP_SETTINGS_BYTES.check(size)
        return new_count, more

    def put(
        self, group: SubscriptionGroup, now_ms: int, reservation: Reservation | None = None
    ) -> None:
        """Add or replace a group, using its reservation if there is one."""
        known = self.table.get(group.name)
        more = _settings_bytes(group) - (0 if known is None else _settings_bytes(known))
        if reservation is not None:
            self._reserved.use(reservation, known is None, more)
        self._settings_bytes += more
        self.table.put(group, now_ms)
        self._notify()

    def copy(self, group: SubscriptionGroup, stored: Table, now_ms: int) -> None:
        """Add or replace a group of this broker's master, as the master stores it."""
        known = self.table.get(group.name)
        if self.table.copy(group, stored, now_ms):
            old_bytes = 0 if known is None else _settings_bytes(known)
            self._settings_bytes += _settings_bytes(group) - old_bytes
            self._notify()

    def copy_forbidden(self, by_group: dict[str, dict[str, int]]) -> None:
        """Replace the forbidden topics of groups by those of this broker's master."""
        if self.table.copy_forbidden(by_group):
            self._forbidden_count = sum(len(topics) for topics in by_group.values())
            self._notify()

    def delete(self, name: str, now_ms: int) -> bool:
        """Delete a group; return False if it did not exist."""
        known = self.table.get(name)
        if known is not None:
            self._settings_bytes -= _settings_bytes(known)
        self._notify()
        is_gone = self.table.delete(name, now_ms)
        self._forbidden_count = sum(len(topics) for topics in self.table.all_forbidden().values())
        return is_gone

    def _notify(self) -> None:
        for subscriber in self.on_change:
            subscriber()


def _settings_bytes(group: SubscriptionGroup) -> int:
    """Return the size of the settings that have no fixed size."""
    size = sum(len(name) + len(value) for name, value in group.attributes)
    for settings in (group.retry_policy, group.subscriptions):
        if settings:
            size += len(json.dumps(settings))
    return size
