"""Field names and limits of the kernel ``deliver``, which its callers use too."""

from reput.format.codes import PullFlag

FIELD_NAMES = (
    "consumerGroup",
    "queueOffset",
    "maxMsgNums",
    "commitOffset",
    "suspendTimeoutMillis",
    "subscription",
    "subVersion",
    "expressionType",
    "maxMsgBytes",
)
"""Fields of pulls that sends lack, numbered after those of sends. Of 5.x: maxMsgBytes."""

OPTIONAL = ("subscription", "expressionType", "maxMsgBytes", "bname")
"""Fields that a pull may lack. ``maxMsgBytes`` is ignored: replies keep to the broker's limits."""

ALLOWED_FLAGS = int(
    PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND | PullFlag.HAS_SUBSCRIPTION | PullFlag.LITE
)
"""Bits of ``sysFlag`` of fast pulls. Filters by class are refused."""

TAG = "TAG"
"""The ``expressionType`` of fast pulls, if they have one."""
LONG_MAX = (1 << 63) - 1
HEAD_BYTES_MAX = 400
"""Room for the head of a reply, before its records, bytes."""
