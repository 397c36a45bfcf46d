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
"""The fields that a pull has and no send; numbered behind those of sends. Of 5.x: maxMsgBytes."""

OPTIONAL = ("subscription", "expressionType", "maxMsgBytes", "bname")
"""What a pull may lack. ``maxMsgBytes`` is not heeded: replies stay within the broker's limits."""

COMMON_FLAGS = int(
    PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND | PullFlag.HAS_SUBSCRIPTION | PullFlag.LITE
)
"""Bits of ``sysFlag``; filters by class are refused."""

TAG = "TAG"
"""The ``expressionType`` of common pulls, if they have one."""
LONG_MAX = (1 << 63) - 1
READ_UNITS_MAX = 4096
"""At most so many units are looked at for one pull."""
HEAD_BYTES_MAX = 400
"""Room that must be left for a reply's head, in front of its records."""
