"""What a set of access rules answers, whichever version of RocketMQ's access control it follows."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from reput.errors import RequestRefused
from reput.format.access import Action, ResourceType
from reput.format.command import Command
from reput.secret import Secret


class AccessRefused(RequestRefused):
    """A request is refused: credentials or permissions do not suffice.

    Args:
        code: The response code.
        remark: The reason, as a sentence.
        is_unverified: True if the sender is not known to be the account.
    """

    def __init__(self, code: int, remark: str, *, is_unverified: bool = False) -> None:
        self.is_unverified = is_unverified
        super().__init__(code, remark)


class Need(NamedTuple):
    """A resource that a request touches, and what it may do there."""

    type: ResourceType
    """CLUSTER, TOPIC or GROUP."""
    name: str
    actions: frozenset[Action]
    """Actions; one of them suffices. Empty: only a super user, or admin, may."""


SUPER_NEED = Need(ResourceType.UNKNOWN, "", frozenset())
"""Need of a request that only super users, or admins, may send."""


class Account(NamedTuple):
    """The verified sender of a request."""

    name: str
    """Access key."""
    is_super: bool
    """True for a super user or an admin, to whom no rules apply."""


class AccountRow(NamedTuple):
    """Keys that verify the signatures of an account."""

    access_key: str
    secret_key: Secret
    is_usable: bool
    """False if all its requests are refused."""


class RuleSet(Protocol):
    """Accounts and rules in force."""

    @property
    def epoch(self) -> int:
        """Number that rises with each change of an account or rule."""

    def rows(self) -> Sequence[AccountRow]:
        """Return all accounts."""

    def authenticate(self, request: Command, address: str) -> Account:
        """Return the account of a request.

        Args:
            request: The request.
            address: IP address of the sender.

        Raises:
            AccessRefused: It is not signed, or not by a usable account.
        """

    def authorize(
        self, account: Account, request: Command, needs: Sequence[Need], address: str
    ) -> None:
        """Check that an account may do what a request needs.

        Accounts and rules are looked up now: they may have changed since ``authenticate``.

        Args:
            account: The account.
            request: The request; fields and body may be missing.
            needs: What it needs: each of them.
            address: IP address of the sender.

        Raises:
            AccessRefused: It may not.
        """
