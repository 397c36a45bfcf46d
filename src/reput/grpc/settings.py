"""The settings of a client, as the front answers them, and the groups that it registers.

Source: rocketmq-proxy 5.5.0 ``GrpcClientSettingsManager``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from reput.client.core import subscription
from reput.client.core.subscription import Subscription
from reput.errors import InvalidOption
from reput.format.bodies import ConsumerData, SubscriptionData
from reput.grpc import limits
from reput.grpc.backend import GroupFacts
from reput.grpc.statuses import Code, StatusError
from reput.grpc.wire.grpc_messages import ClientType, FilterType
from reput.grpc.wire.protobuf import from_ms

BODY_BYTES_MAX = 4 * 1024 * 1024
PRODUCER_ATTEMPTS = 3
_BACK_OFF_MS = (10, 1000)
_BACK_OFF_FACTOR = 2.0
BATCH_MAX = 32
POLLING_MS = 20_000
LITE_LETTERS = 64
RETRY_DELAYS_S = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""Pauses before further attempts, in seconds, for groups without a policy."""

_VALUE_LETTERS = 64
"""Number of characters counted for each value in settings, besides its text."""

CONSUMERS = {
    ClientType.PUSH_CONSUMER: "CONSUME_PASSIVELY",
    ClientType.LITE_PUSH_CONSUMER: "CONSUME_PASSIVELY",
    ClientType.SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
    ClientType.LITE_SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
}
"""Types of consumers that are served, and how brokers name them.

Java's proxy 5.5.0 refuses simple consumers of lite topics, which the SDK for Python has.
"""

_KINDS = {
    (False, False): ClientType.SIMPLE_CONSUMER,
    (False, True): ClientType.PUSH_CONSUMER,
    (True, False): ClientType.LITE_SIMPLE_CONSUMER,
    (True, True): ClientType.LITE_PUSH_CONSUMER,
}
"""Type of a consumer: whether its group reads lite topics, and whether it wants renewals."""
LITE = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
"""Types of consumers that read lite topics."""


def check_consumer(sent: Mapping[str, Any]) -> None:
    """Check the type of a consumer. Raises ``StatusError``: it is not served."""
    number = sent.get("client_type", 0)
    if number not in CONSUMERS:
        known = {kind.value: kind.name for kind in ClientType}
        raise StatusError(
            Code.UNRECOGNIZED_CLIENT_TYPE,
            f"Client type is not consumer, type: {known.get(number, 'UNRECOGNIZED')}; allowed: "
            "push consumers, simple consumers",
        )


def of_producer(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that answer those of a producer."""
    begin_ms, end_ms = _BACK_OFF_MS
    back_off = {
        "initial": from_ms(begin_ms),
        "max": from_ms(end_ms),
        "multiplier": _BACK_OFF_FACTOR,
    }
    publishing = {
        **sent["publishing"],
        "validate_message_type": True,
        "max_body_size": BODY_BYTES_MAX,
    }
    policy = {"max_attempts": PRODUCER_ATTEMPTS, "exponential_backoff": back_off}
    return {**sent, "backoff_policy": policy, "publishing": publishing}


def of_consumer(sent: Mapping[str, Any], group: GroupFacts) -> dict[str, Any]:
    """Return the settings that answer those of a consumer."""
    consuming = {
        **sent["subscription"],
        "fifo": group.is_ordered,
        "receive_batch_size": BATCH_MAX,
        "long_polling_timeout": from_ms(POLLING_MS),
        "lite_subscription_quota": group.lite_quota,
        "max_lite_topic_size": LITE_LETTERS,
    }
    policy = {"max_attempts": group.retry_max + 1, **_pauses(group.retry_policy)}
    return {**sent, "backoff_policy": policy, "subscription": consuming}


def _pauses(policy: Any) -> dict[str, Any]:
    """Return the retry policy of a group, in the form of the settings."""
    exponential = (policy or {}).get("exponentialRetryPolicy")
    if (policy or {}).get("type") == "EXPONENTIAL" and exponential:
        return {
            "exponential_backoff": {
                "initial": from_ms(int(exponential.get("initial", 5_000))),
                "max": from_ms(int(exponential.get("max", 7_200_000))),
                "multiplier": float(exponential.get("multiplier", 2)),
            }
        }
    customized = ((policy or {}).get("customizedRetryPolicy") or {}).get("next")
    delays_ms = customized or [1000 * seconds for seconds in RETRY_DELAYS_S]
    return {"customized_backoff": {"next": [from_ms(int(delay)) for delay in delays_ms]}}


def group_of(settings: Mapping[str, Any]) -> str:
    """Return the name of a consumer's group."""
    group: str = settings.get("subscription", {}).get("group", {}).get("name", "")
    return group


def topics_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the topics of a producer: brokers know it under their names as its groups."""
    topics = settings.get("publishing", {}).get("topics", ())
    return [topic["name"] for topic in topics if topic.get("name")]


def subscribes(known: Mapping[str, Any] | None, request: Mapping[str, Any]) -> bool:
    """Return whether the known settings of a client name the topic of a ReceiveMessage."""
    topic = request.get("message_queue", {}).get("topic", {})
    entries = (known or {}).get("subscription", {}).get("subscriptions", ())
    return any(entry.get("topic") == topic for entry in entries)


def of_receive(
    known: Mapping[str, Any] | None, request: Mapping[str, Any], *, is_lite: bool
) -> dict[str, Any]:
    """Return the settings that a ReceiveMessage shows, where the known ones do not name its topic.

    The SDK for Python begins to receive before its settings have come, and sends them only minutes
    after a restart of the server; those of the SDK for Rust never name a topic.

    Args:
        known: Settings of the client; None before there are any.
        request: The request.
        is_lite: Whether its group reads lite topics.
    """
    before = (known or {}).get("subscription", {}).get("subscriptions", ())
    topic = request.get("message_queue", {}).get("topic", {})
    entry = {"topic": topic, "expression": request.get("filter_expression", {})}
    kind = _KINDS[is_lite, request.get("auto_renew", False)]
    return {
        "client_type": int(kind),
        "subscription": {
            "group": request.get("group", {}),
            "subscriptions": [*before, entry],
        },
    }


def filter_of(topic: str, expression: Mapping[str, Any], now_ms: int) -> Subscription:
    """Return a subscription of a filter expression.

    Raises:
        StatusError: The expression has separators and no tag, or is an empty one of SQL92.
    """
    text = expression.get("expression", "")
    is_sql = expression.get("type", FilterType.TAG) == FilterType.SQL
    try:
        make = subscription.sql if is_sql else subscription.tags
        return make(topic, text, now_ms)
    except InvalidOption as error:
        problem = "Expression can't be null! SQL92" if is_sql else "subString split error"
        raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, f"{problem}: {error}") from error


def check_size(settings: Mapping[str, Any]) -> None:
    """Refuse settings that are too large to be kept.

    Raises:
        LimitExceeded: They have too many topics, or too long filters.
    """
    entries = settings.get("subscription", {}).get("subscriptions", ())
    count = max(len(entries), len(settings.get("publishing", {}).get("topics", ())))
    limits.GRPC_SETTINGS_TOPICS.check(count)
    limits.GRPC_SETTINGS_BYTES.check(_letters(settings))


def _letters(value: Any) -> int:
    """Return the size of all texts in settings, in characters, and some more for each value."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_letters, value.values())) + sum(map(_letters, value)) + _VALUE_LETTERS
    if isinstance(value, list):
        return sum(map(_letters, value)) + _VALUE_LETTERS
    return 0


def subscriptions(settings: Mapping[str, Any], now_ms: int) -> Iterator[SubscriptionData]:
    """Yield the subscriptions of a consumer, in the form of heartbeats.

    Raises:
        StatusError: A filter expression cannot be used.
    """
    for entry in settings.get("subscription", {}).get("subscriptions", ()):
        yield filter_of(entry["topic"]["name"], entry.get("expression", {}), now_ms).data()


def consumer_data(settings: Mapping[str, Any], data: list[SubscriptionData]) -> ConsumerData:
    """Return a consumer with subscriptions, in the form of heartbeats."""
    kind = ClientType(settings["client_type"])
    return ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        consume_type=CONSUMERS[kind],
        group_name=group_of(settings),
        message_model="LITE_SELECTIVE" if kind in LITE else "CLUSTERING",
        subscription_data_set=data,
    )
