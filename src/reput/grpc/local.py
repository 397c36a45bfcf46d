"""The front of a broker in the same process: topics, groups, connections, and users."""

from collections.abc import Iterable

from reput.broker.access.access import Access
from reput.broker.access.rules import AccessRefused, Account, AccountRow, Need, RuleSet
from reput.broker.lite.subscriptions import BIND_TOPIC, quota_of
from reput.broker.server import Broker
from reput.broker.topic.attributes import MESSAGE_TYPE
from reput.errors import REMARK_LETTERS, excerpt
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.signing import Signer
from reput.grpc.access import CODES, NAME_LETTERS_SHOWN, Gate, Signers
from reput.grpc.backend import (
    BrokerQueues,
    GroupFacts,
    TopicFacts,
    UnknownBroker,
)
from reput.remoting.channel import Channel, Owner
from reput.remoting.connection import READ_BYTES
from reput.store.tables.config_tables import TopicConfig

_TYPE_DEFAULT = "NORMAL"
_TOPICS_KEPT = 1_000


def message_type(topic: TopicConfig) -> str:
    """Return the type of the messages of a topic."""
    return dict(topic.attributes).get(MESSAGE_TYPE, _TYPE_DEFAULT)


class LocalBackend:
    """Topics, groups and connections of a broker.

    Args:
        broker: The broker, which has started.
    """

    keeps_handles = True
    checks_users = True
    early_ms = 0

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[str, tuple[TopicConfig, int, TopicFacts]] = {}
        """Name -> topic and permission of the broker, and the facts that follow of them."""
        self._buffer = memoryview(bytearray(READ_BYTES))

    async def topic(self, name: str) -> TopicFacts | None:
        """Return a topic; None if it does not exist."""
        topic = self._broker.parts.topics.get(name)
        if topic is None:
            return None
        broker = self._broker.settings.broker
        permission = broker.broker_permission
        known = self._topics.get(name)
        if known is not None and known[0] is topic and known[1] == permission:
            return known[2]
        queues = BrokerQueues(
            broker.broker_name,
            topic.read_queue_count,
            topic.write_queue_count,
            topic.perm & permission,
        )
        facts = TopicFacts(name, message_type(topic), (queues,))
        if len(self._topics) >= _TOPICS_KEPT:
            del self._topics[next(iter(self._topics))]
        self._topics[name] = topic, permission, facts
        return facts

    async def group(self, name: str, address: str) -> GroupFacts | None:
        """Return a group; create it if ``autoCreateSubscriptionGroup`` allows it.

        Raises:
            RequestRefused: Its name is not allowed, or there are too many groups.
        """
        parts = self._broker.parts
        group = parts.subscription_groups.obtain(name, parts.clock.now_ms(), address)
        if group is None:
            return None
        attributes = dict(group.attributes)
        return GroupFacts(
            name,
            group.consume_orderly,
            group.retry_max,
            group.retry_policy,
            attributes.get(BIND_TOPIC, ""),
            quota_of(attributes),
        )

    async def connect(
        self,
        broker_name: str,
        owner: Owner,
        address: tuple[str, int],
        signer: Signer | None = None,
    ) -> Channel:
        """Return a connection inside of the process. Raises ``UnknownBroker``."""
        own_name = self._broker.settings.broker.broker_name
        if broker_name != own_name:
            raise UnknownBroker(broker_name, own_name)
        return self._broker.connect_here(owner, self._buffer, address, signer)


class LocalAccounts:
    """The users of a broker with access control.

    The broker checks each request of a client again, as one that the user has signed.

    Args:
        broker: The broker, which has started.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._rules: RuleSet | None = None
        self._epoch = -1
        self._rows: dict[str, AccountRow] = {}
        self._signers = Signers()

    async def signer(self, name: str) -> Signer:
        """Return the signer of a user. Raises ``AccessRefused``: it is unknown or disabled."""
        rules = self._access.rules
        if rules is not self._rules or rules.epoch != self._epoch:
            self._rules, self._epoch = rules, rules.epoch
            self._rows = {row.access_key: row for row in rules.rows()}
        row = self._rows.get(name)
        if row is None or not row.is_usable:
            what = "not found" if row is None else "disabled"
            text = f"User:{name[:NAME_LETTERS_SHOWN]} is {what}."
            raise AccessRefused(ResponseCode.NO_PERMISSION, text, is_unverified=True)
        return self._signers.of(name, row.secret_key)

    async def authorize(self, name: str, needs: Iterable[Need], address: str) -> None:
        """Check the needs of a call. Raises ``AccessRefused``."""
        account = Account(name, is_super=False)  # the rules look it up
        self._access.rules.authorize(account, _ANY_CALL, tuple(needs), address)

    def refused(self, method: str, address: str, refusal: AccessRefused) -> None:
        """Count a refused call with the refused requests of the broker."""
        code = CODES.get(method, 0)
        text = excerpt(str(refusal), REMARK_LETTERS)
        self._access.refusals.add(address, code, text, is_unverified=refusal.is_unverified)

    @property
    def _access(self) -> Access:
        access = self._broker.parts.access
        assert access is not None, "the broker has access control"
        return access


_ANY_CALL = Command(0, ext_fields={})
"""Request without a code: whitelists of request codes do not mean calls."""


def gate_of(broker: Broker) -> Gate | None:
    """Return what checks the calls of a broker's clients; None without access control."""
    if broker.parts.access is None:
        return None
    settings = broker.settings.access
    return Gate(
        LocalAccounts(broker),
        authorizes=settings.authorization_enabled or not settings.authentication_enabled,
        unsigned=settings.unsigned_methods,
        unruled=settings.unruled_methods,
    )
