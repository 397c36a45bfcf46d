"""What the front needs of RocketMQ: topics, groups, and connections to brokers.

``local`` is a broker of this process, ``proxy.remote`` are any brokers of some name servers. The
front makes every change by requests of the remoting protocol: a client of the front is a client of
its brokers like any other.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from reput.broker.lite.subscriptions import CLIENT_QUOTA_DEFAULT
from reput.errors import RequestRefused
from reput.format.codes import PERM_WRITE, ResponseCode
from reput.format.signing import Signer
from reput.remoting.channel import Channel, Owner


class UnknownBroker(RequestRefused):
    """Error of a request that names a broker which is not served here.

    Args:
        broker_name: Name of the broker.
        allowed: The brokers that are, in words.
    """

    def __init__(self, broker_name: str, allowed: str) -> None:
        super().__init__(
            ResponseCode.INVALID_PARAMETER,
            f"cannot find broker {broker_name}: it is not served at this endpoint; allowed: "
            f"{allowed}",
        )


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """The queues of a topic at a broker.

    Attributes:
        broker_name: Name of the broker.
        read_count: Number of queues that can be read.
        write_count: Number of queues that can be written.
        permission: Permissions of RocketMQ: 4 read, 2 write.
        has_timers: Whether the broker delivers at any time; before 5.0 it has delay levels only.
    """

    broker_name: str
    read_count: int
    write_count: int
    permission: int
    has_timers: bool = True


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic.

    Attributes:
        name: Its name.
        message_type: Its attribute ``message.type``: NORMAL, FIFO, DELAY, TRANSACTION, MIXED,
            PRIORITY, LITE.
        brokers: Its queues, in the order of the brokers' names.
        writable: Those of the brokers that can be written.
    """

    name: str
    message_type: str
    brokers: tuple[BrokerQueues, ...]
    writable: tuple[BrokerQueues, ...] = field(init=False)

    def __post_init__(self) -> None:
        writable = tuple(b for b in self.brokers if b.permission & PERM_WRITE and b.write_count)
        object.__setattr__(self, "writable", writable)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group.

    Attributes:
        name: Its name.
        is_ordered: Whether its members consume in order.
        retry_max: Number of further attempts after the first one.
        retry_policy: Its policy as in subscriptionGroup.json: ``type`` and parameters; or None.
        lite_parent: Parent of the lite topics that its members read; empty if they read none.
        lite_quota: Lite topics to which a member subscribes at most.
    """

    name: str
    is_ordered: bool
    retry_max: int
    retry_policy: Any
    lite_parent: str = ""
    lite_quota: int = CLIENT_QUOTA_DEFAULT


class Backend(Protocol):
    """Topics, groups and brokers.

    Attributes:
        keeps_handles: Whether a handle stays valid while its message is renewed. Java's brokers
            give others.
        checks_users: Whether brokers check each request as one of the client's user.
        early_ms: Time before its end at which a broker may answer a held pop, in ms.
    """

    keeps_handles: bool
    checks_users: bool
    early_ms: int

    async def topic(self, name: str) -> TopicFacts | None:
        """Return a topic; None if it does not exist."""

    async def group(self, name: str, address: str) -> GroupFacts | None:
        """Return a group; create it if brokers do that for remoting clients.

        Args:
            name: Its name.
            address: IP address of the client.

        Raises:
            ReputError: It cannot be created.
        """

    async def connect(
        self,
        broker_name: str,
        owner: Owner,
        address: tuple[str, int],
        signer: Signer | None = None,
    ) -> Channel:
        """Return a new connection to a broker.

        Args:
            broker_name: Name of the broker.
            owner: Owner of the connection.
            address: Host and port of the client that the connection is for.
            signer: Signs as the user of the client; None without access control.

        Raises:
            UnknownBroker: There is no such broker.
            Unreachable: The connection could not be opened.
        """
