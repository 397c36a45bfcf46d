"""The broker's settings: what broker.conf says of it, under the same names and defaults.

Those of its store are ``reput.store.config``; one file holds both.
"""

import socket
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from reput import config
from reput.broker.config_keys import ACCEPTED_WITHOUT_EFFECT, ONLY
from reput.config import Range
from reput.errors import InvalidOption

Milliseconds = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Port = Annotated[int, Range(0, 65535)]

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """Who the broker is, where it listens, and what it allows.

    Raises:
        InvalidOption: A value is outside its range.
    """

    keys: ClassVar[config.Keys] = config.Keys(
        renamed={}, without_effect=ACCEPTED_WITHOUT_EFFECT, only=ONLY
    )

    # --- who ---------------------------------------------------------------

    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = field(default_factory=socket.gethostname)
    broker_id: Annotated[int, Range(0)] = 0
    """0 is the master."""

    # --- where -------------------------------------------------------------

    namesrv_addr: str = ""
    """Name servers, ``host:port`` separated by semicolons; none: nobody is told."""
    broker_ip1: str = field(default_factory=lambda: own_address())
    """The address that clients are told: they must be able to reach it."""
    bind_address: str = "0.0.0.0"
    """What to listen on."""
    listen_port: Port = 10911
    """0: any that is free. Two below it is the fast port, for everything but pulls."""
    fast_port_enable: bool = True
    """Listen on ``listenPort - 2`` too: the VIP channel of clients."""
    server_channel_max_idle_time_seconds: Annotated[int, Range(1)] = 120
    """A connection without traffic for so long is closed."""
    register_name_server_period: Annotated[int, Range(1)] = 30_000
    """Milliseconds between two registrations, 10 to 60 seconds; changes are told at once."""
    register_broker_timeout_mills: Annotated[int, Range(1)] = 24_000
    metrics_port: Port = 0
    """Where /metrics and /health are served; 0: nowhere. Not in RocketMQ."""

    # --- topics and groups ---------------------------------------------------

    broker_permission: Annotated[int, Range(0, 7)] = PERM_READ | PERM_WRITE
    """4 read, 2 write: what the broker as a whole allows."""
    auto_create_topic_enable: bool = True
    """Make a topic when somebody sends to it."""
    default_topic_queue_nums: Count = 8
    """Queues of such a topic at most; clients ask for 4."""
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    """Make a topic that is called like the cluster."""
    broker_topic_enable: bool = True
    """Make a topic that is called like the broker."""
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"

    # --- sending -------------------------------------------------------------

    reject_transaction_message: bool = False
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    """What producers are told: whether to write traces."""

    # --- pulling -------------------------------------------------------------

    long_polling_enable: bool = True
    """Hold a pull that finds nothing until something arrives."""
    short_polling_time_mills: Milliseconds = 1_000
    """How long it is held without long polling."""
    pull_hold_max: Annotated[int, Range(0)] = 100_000
    """Held pulls at most; more are answered at once. Not in RocketMQ."""
    slave_read_enable: bool = False
    enable_property_filter: bool = False
    """Allow SQL92 subscriptions."""
    notify_consumer_ids_changed_enable: bool = True
    """Tell the members of a group when one comes or goes."""
    channel_expired_timeout: Annotated[int, Range(1)] = 120_000
    """A client that sent no heartbeat for so long is gone, ms. Not an option in RocketMQ."""
    rebalance_lock_max_live_time: Annotated[int, Range(1)] = 60_000
    """How long a lock of a queue lasts, ms (4.x: a system property)."""

    # --- tables --------------------------------------------------------------

    flush_consumer_offset_interval: Annotated[int, Range(1)] = 5_000
    """Milliseconds between two savings of the consumer offsets."""
    default_query_max_num: Count = 32
    """Messages that a query by unique key returns at most."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        if self.listen_port and self.fast_port_enable and self.listen_port <= 2:
            raise InvalidOption("listenPort", self.listen_port, "0, or 3 to 65535: one is 2 below")


def own_address() -> str:
    """Return the address that others reach this machine by, as far as routes tell.

    Asks the system which address it would send from; nothing is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: behind the default route
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
