"""Words of access control 2.0: users, resources, actions, decisions, and the texts of resources.

Names and numbers are Java's; names are read in any case. A resource is ``Topic:orders`` (one
topic), ``Topic:orders-*`` (all with that beginning), ``Topic:*`` (all) or ``*`` (everything).
Source: rocketmq 5.5.0 ``UserType``, ``UserStatus``, ``Decision``, ``PolicyType``, ``Resource``,
``ResourceType``, ``ResourcePattern``, ``Action``.
"""

import enum
from typing import NamedTuple, TypeVar

from reput.errors import InvalidOption

ANYTHING = "*"
"""Text of the resource that is everything, and the name of all resources of a type."""
_SEPARATOR = ":"

_E = TypeVar("_E", bound="NamedNumber")


class NamedNumber(enum.IntEnum):
    """Base of enumerations whose texts are those of ``texts``."""

    @property
    def text(self) -> str:
        """The name as Java writes it."""
        return self.name.capitalize()

    @classmethod
    def parse(cls: type[_E], text: str) -> _E:
        """Return the value of a name, in any case.

        Raises:
            InvalidOption: There is no such name.
        """
        value = cls.__members__.get(text.strip().upper())
        if value is None:
            allowed = ", ".join(member.text for member in cls)
            raise InvalidOption(cls.__name__, text, allowed)
        return value


class ResourceType(NamedNumber):
    """Type of a resource."""

    UNKNOWN = 0
    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class ResourcePattern(enum.IntEnum):
    """Kind of a resource's name."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class Action(NamedNumber):
    """Action of a request on a resource. Rules cannot contain ``ANY``."""

    UNKNOWN = 0
    ALL = 1
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class Decision(NamedNumber):
    """Effect of a rule."""

    ALLOW = 1
    DENY = 2


class PolicyType(NamedNumber):
    """Kind of a policy. Default policies apply only where no custom policy matches."""

    CUSTOM = 1
    DEFAULT = 2


class UserType(NamedNumber):
    """Kind of a user. A super user may do everything."""

    SUPER = 1
    NORMAL = 2


class UserStatus(NamedNumber):
    """Status of a user, who may be disabled."""

    ENABLE = 1
    DISABLE = 2

    @property
    def text(self) -> str:
        """The name as Java writes it."""
        return self.name.lower()


class Resource(NamedTuple):
    """Resources to which a rule applies."""

    type: ResourceType
    name: str
    """Name; the beginning of names if the pattern is PREFIXED, empty if it is ANY."""
    pattern: ResourcePattern

    @property
    def text(self) -> str:
        """The text that ``parse_resource`` reads."""
        if self.type is ResourceType.ANY:
            return ANYTHING
        if self.pattern is ResourcePattern.LITERAL:
            return f"{self.type.text}{_SEPARATOR}{self.name}"
        return f"{self.type.text}{_SEPARATOR}{self.name}{ANYTHING}"

    def covers(self, type_: ResourceType, name: str) -> bool:
        """Return whether it contains the resource of a type and name."""
        if self.type is not ResourceType.ANY and self.type is not type_:
            return False
        if self.pattern is ResourcePattern.LITERAL:
            return self.name == name
        return self.pattern is ResourcePattern.ANY or name.startswith(self.name)


def parse_resource(text: str) -> Resource:
    """Return the resource of a text.

    Raises:
        InvalidOption: It is none.
    """
    if text == ANYTHING:
        return Resource(ResourceType.ANY, "", ResourcePattern.ANY)
    type_text, separator, name = text.partition(_SEPARATOR)
    type_ = ResourceType.__members__.get(type_text.strip().upper())
    if not separator or not name or type_ in (None, ResourceType.UNKNOWN, ResourceType.ANY):
        raise InvalidOption(
            "resource", text, "*, or Cluster:, Namespace:, Topic: or Group: and a name, abc* or *"
        )
    assert type_ is not None
    if name == ANYTHING:
        return Resource(type_, "", ResourcePattern.ANY)
    if name.endswith(ANYTHING):
        return Resource(type_, name.removesuffix(ANYTHING), ResourcePattern.PREFIXED)
    return Resource(type_, name, ResourcePattern.LITERAL)
