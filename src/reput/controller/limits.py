"""Limits of a controller: groups, replicas, changes."""

from reput.format.codes import ResponseCode
from reput.limits import MIB, declare

# --- controllers -----------------------------------------------------------------------------

CONTROLLER_NAME_LETTERS = declare(
    "controller_name_letters",
    "name of a cluster or broker, address or check code at a controller",
    255,
    "characters",
)
CONTROLLER_GROUPS = declare(
    "controller_groups",
    "broker names at a controller",
    1_000,
    option="reputReplicaGroupsMax",
    scope="server",
)
CONTROLLER_REPLICAS = declare("controller_replicas", "replicas of one broker name", 64)
CONTROLLER_ETCD_BYTES = declare(
    "controller_etcd_bytes", "answer of etcd to a controller", 64 * MIB, "bytes", scope="server"
)
CONTROLLER_CHANGES_WAITING = declare(
    "controller_changes_waiting",
    "requests that wait for changes of a controller's state",
    1_000,
    scope="server",
    response_code=ResponseCode.SYSTEM_BUSY,
)
