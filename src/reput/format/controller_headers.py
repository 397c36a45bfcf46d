"""Headers of the requests to controllers, and of their replies and notices (5.x).

Source: rocketmq 5.5.0 ``org.apache.rocketmq.remoting.protocol.header.controller``, and
``BrokerHeartbeatRequestHeader``. The field ``invokeTime`` of requests is not used.
"""

from reput.format.headers import Header
from reput.format.java import Int, Long

NO_BROKER_ID = -1
"""Broker id of an election that no broker has requested."""


class HeartbeatHeader(Header, kw_only=True):
    """Request 904 to a controller."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    """Last epoch of the broker's log."""
    max_offset: Long | None = None
    """End of its log, a physical offset."""
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None


class AlterSyncStateSetHeader(Header, kw_only=True):
    """Request 1001."""

    broker_name: str
    master_broker_id: Long
    master_epoch: Int


class AlterSyncStateSetReplyHeader(Header, kw_only=True):
    """Reply to 1001."""

    new_sync_state_set_epoch: Int


class ElectMasterHeader(Header, kw_only=True):
    """Request 1002."""

    cluster_name: str
    broker_name: str
    broker_id: Long = NO_BROKER_ID
    designate_elect: bool = False


class MasterHeader(Header, kw_only=True):
    """Reply to 1002 and 1004, and request 1008; 1004 has no epoch of the set."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


class RegisterAtControllerHeader(Header, kw_only=True):
    """Request 1003."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_address: str


class RegisterAtControllerReplyHeader(MasterHeader, kw_only=True):
    """Reply to 1003; without a master if none is alive."""

    cluster_name: str
    broker_name: str


class ReplicaInfoHeader(Header, kw_only=True):
    """Request 1004."""

    broker_name: str


class ControllerMetadataReplyHeader(Header, kw_only=True):
    """Reply to 1005."""

    group: str
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool
    peers: str
    """``id:host:port;`` of each controller."""


class CleanBrokerDataHeader(Header, kw_only=True):
    """Request 1011."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    """Broker ids, separated by ``;``; empty for all."""
    is_clean_living_broker: bool = False


class NextBrokerIdHeader(Header, kw_only=True):
    """Request 1012."""

    cluster_name: str
    broker_name: str


class NextBrokerIdReplyHeader(NextBrokerIdHeader, kw_only=True):
    """Reply to 1012."""

    next_broker_id: Long


class ApplyBrokerIdHeader(Header, kw_only=True):
    """Request 1013."""

    cluster_name: str
    broker_name: str
    applied_broker_id: Long
    register_check_code: str
    """``address;milliseconds``: the broker repeats a request with the same code."""


class ApplyBrokerIdReplyHeader(NextBrokerIdHeader, kw_only=True):
    """Reply to 1013."""
