"""The rules of access control 1.0: which account sent a request, and whether it may.

In this order: requests from a global white address are served unchecked; the account must exist;
requests from its own white address are served unchecked; the signature must be right; an admin may
do everything; the trace topic may be written; each resource needs PUB or SUB, by its own permission
or else the account's default one. Some codes are never served unchecked.
Source: rocketmq 4.9.7 ``PlainPermissionManager.validate``; 5.3.2 ``PlainPermissionChecker``. Java
checks fewer requests: docs/reference/protocol.md.
"""

import hmac
import logging
from collections.abc import Sequence

from reput.broker.access.plain_accounts import (
    Permission,
    PlainAccount,
    PlainAccounts,
)
from reput.broker.access.rules import AccessRefused, Account, AccountRow, Need
from reput.format import names, signing
from reput.format.access import Action, ResourceType
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.signing import Credentials, Signer

ALWAYS_CHECKED = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        *range(3001, 3011),  # users and rules of access control 2.0
    }
)
"""Codes that are checked from white addresses, too: they change settings and accounts."""
ADMIN_CODES = frozenset({RequestCode.GET_BROKER_CONFIG, *range(50, 55)})
"""Codes for admins, besides those whose needs are for admins."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
ANYBODY = ""
"""Name of the sender of an unchecked request from a global white address."""

_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
_READS = frozenset({Action.GET, Action.LIST})

_log = logging.getLogger(__name__)


class PlainRules:
    """Accounts and permissions in force.

    Args:
        accounts: The accounts.
        skips_signature: Whether requests from white addresses are unchecked; else a white address
            is needed besides the signature.
    """

    def __init__(self, accounts: PlainAccounts, *, skips_signature: bool = True) -> None:
        self.accounts = accounts
        self._skips_signature = skips_signature
        self._signers: dict[str, Signer] = {}
        self._epoch = 1
        self._warn()

    @property
    def epoch(self) -> int:
        """Number that rises with each change of an account or rule."""
        return self._epoch

    def replace(self, accounts: PlainAccounts) -> None:
        """Put other accounts in force."""
        is_white_new = accounts.white_addresses != self.accounts.white_addresses
        self.accounts = accounts
        self._signers = {}
        self._epoch += 1
        if is_white_new:
            self._warn()

    def rows(self) -> Sequence[AccountRow]:
        """Return all accounts."""
        return [
            AccountRow(account.access_key, account.secret_key, is_usable=True)
            for account in self.accounts.accounts.values()
        ]

    def authenticate(self, request: Command, address: str) -> Account:
        """Return the account of a request; see ``RuleSet``."""
        fields = request.ext_fields or {}
        name = fields.get(signing.ACCESS_KEY)
        if self._is_white(request.code, None, address):
            return Account(ANYBODY, is_super=True)
        if name is None:
            raise _refused("No accessKey is configured", is_unverified=True)
        account = self._account(name)
        if self._is_white(request.code, account, address):
            return Account(name, account.is_admin)
        if not self._is_signed(account, request):
            text = f"Check signature failed for accessKey={name}"
            raise _refused(text, is_unverified=True)
        self._check_address(account, address)
        return Account(name, account.is_admin)

    def authorize(
        self, account: Account, request: Command, needs: Sequence[Need], address: str
    ) -> None:
        """Check that an account may do what a request needs; see ``RuleSet``."""
        if self._is_white(request.code, None, address):
            return
        if account.name == ANYBODY:  # its address was a white one
            raise _refused("No accessKey is configured", is_unverified=True)
        owner = self._account(account.name)
        if self._is_white(request.code, owner, address):
            return
        self._check_address(owner, address)
        if owner.is_admin:
            return
        if request.code in ADMIN_CODES:
            raise _not_admin(request.code, owner)
        for need in needs:
            _check(owner, request.code, need)

    def _account(self, name: str) -> PlainAccount:
        account = self.accounts.accounts.get(name)
        if account is None:
            raise _refused(f"No acl config for {name}", is_unverified=True)
        return account

    def _is_white(self, code: int, account: PlainAccount | None, address: str) -> bool:
        """Return True if a request is unchecked: by the global addresses, or by an account's."""
        if not self._skips_signature or code in ALWAYS_CHECKED:
            return False
        source = self.accounts if account is None else account
        return source.white_addresses.contains(address)

    def _check_address(self, account: PlainAccount, address: str) -> None:
        """Refuse an address that is not white, if white addresses are required and configured."""
        if self._skips_signature:
            return
        both = (self.accounts.white_addresses, account.white_addresses)
        if any(both) and not any(white.contains(address) for white in both):
            raise _refused(f"{address} is no white address for accessKey={account.access_key}")

    def _is_signed(self, account: PlainAccount, request: Command) -> bool:
        fields = request.ext_fields or {}
        if request.has_repeats:  # the signature does not say which of two values is meant
            return False
        given = fields.get(signing.SIGNATURE, "")
        signer = self._signers.get(account.access_key)
        if signer is None:
            signer = Signer(Credentials(account.access_key, account.secret_key))
            self._signers[account.access_key] = signer
        if _equal(signer, fields, request, given):
            return True
        if request.code != RequestCode.QUERY_MESSAGE or signing.UNIQUE_KEY_QUERY not in fields:
            return False
        # Clients before 4.9.4 do not sign this field.
        signed = {name: text for name, text in fields.items() if name != signing.UNIQUE_KEY_QUERY}
        return _equal(signer, signed, request, given)

    def _warn(self) -> None:
        """Log the addresses whose requests are unchecked."""
        patterns = [text for file in self.accounts.files for text in file.white_texts]
        patterns += [
            f"{account.white_text} (account {account.access_key!r} only)"
            for account in self.accounts.accounts.values()
            if account.white_addresses
        ]
        if patterns and self._skips_signature:
            _log.warning(
                "requests from these addresses are not checked, except changes of settings and "
                "accounts: %s",
                ", ".join(patterns),
            )


def _equal(signer: Signer, fields: dict[str, str], request: Command, given: str) -> bool:
    expected = signer.signature(signing.content(fields, request.body))
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def _check(account: PlainAccount, code: int, need: Need) -> None:
    """Refuse a request of an account that lacks a needed permission.

    Raises:
        AccessRefused: It may not.
    """
    if need.type is ResourceType.CLUSTER and need.actions & _READS:
        return  # the signature suffices
    wanted = Permission(0)
    if need.type in (ResourceType.TOPIC, ResourceType.GROUP):
        if Action.PUB in need.actions:
            wanted |= Permission.PUB
        if need.actions & {Action.SUB, Action.GET}:
            wanted |= Permission.SUB
    if not wanted:
        raise _not_admin(code, account)
    is_group = need.type is ResourceType.GROUP
    if not is_group and need.name == TRACE_TOPIC and wanted & Permission.PUB:
        return
    name = names.retry_topic(need.name) if is_group else need.name
    default = account.default_group if is_group else account.default_topic
    owned = account.permissions.get(name, default)
    if owned & Permission.DENY or not owned & wanted:
        kind = "group" if is_group else "topic"
        raise _refused(f"No default permission for {kind}:{need.name}")


def _not_admin(code: int, account: PlainAccount) -> AccessRefused:
    text = f"Need admin permission for request code={code}, but accessKey={account.access_key}"
    return _refused(f"{text} is not")


def _refused(text: str, *, is_unverified: bool = False) -> AccessRefused:
    return AccessRefused(ResponseCode.SYSTEM_ERROR, _EXCEPTION + text, is_unverified=is_unverified)
