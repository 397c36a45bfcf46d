"""Keys of broker.conf that RocketMQ has and the broker here does not need, each with the reason."""

from collections.abc import Mapping

ACCEPTED_WITHOUT_EFFECT: Mapping[str, str] = {}
ONLY: Mapping[str, tuple[str, str]] = {}
