"""Access control 2.0: users, and rules for what they may do.

    request -> authenticate: access key -> user -> HMAC of all fields and the body
            -> authorize:    each need -> the most exact rule of the user

Codes and texts are those of rocketmq 5.5.0 ``DefaultAuthenticationHandler`` and
``AclAuthorizationHandler``; every refusal has code 16.
"""

import hmac
from collections.abc import Sequence
from pathlib import Path

from reput.broker.access.acls import AclTable, subject_of
from reput.broker.access.policy import Acl
from reput.broker.access.rules import SUPER_NEED, AccessRefused, Account, AccountRow, Need
from reput.broker.access.users import User, UserTable
from reput.broker.settings.access import NEVER_WHITELISTED, AccessSettings
from reput.errors import InvalidOption
from reput.format import java, signing
from reput.format.access import Decision, UserType
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.signing import ACCESS_KEY, SIGNATURE, UNIQUE_KEY_QUERY, Credentials, Signer
from reput.secret import Secret
from reput.store.files import paths
from reput.store.files.disk import Disk

UNSIGNED = Account("", is_super=False)
"""Sender of a request without a valid signature that needs none."""
_NO_RULES = Acl()
_BYTES_SHOWN = 200
"""Characters of a name in a refusal."""


class UserRules:
    """The users and rules in force.

    Args:
        settings: Which requests are checked.
        users: The users.
        acls: Their rules.
        cluster_name: Name of the cluster, for refusals.
    """

    def __init__(
        self, settings: AccessSettings, users: UserTable, acls: AclTable, cluster_name: str
    ) -> None:
        self.settings = settings
        self.users = users
        self.acls = acls
        self._cluster_name = cluster_name
        self._unsigned_codes = settings.unsigned_codes
        self._unruled_codes = settings.unruled_codes
        self._signers: dict[str, tuple[Secret, Signer]] = {}
        self._nobodys_signer = Signer(Credentials("nobody", Secret("nobody")))

    @property
    def epoch(self) -> int:
        """Number that rises with each change of a user or rule."""
        return self.users.change_count + self.acls.change_count

    def rows(self) -> Sequence[AccountRow]:
        """Return all users."""
        return [
            AccountRow(user.name, user.password, is_usable=user.is_enabled)
            for user in self.users.all()
        ]

    # Authentication -----------------------------------------------------------------------------

    def authenticate(self, request: Command, address: str) -> Account:
        """Return the user of a request; see ``RuleSet``."""
        if request.code not in self._unsigned_codes:
            return self._verified(request)
        try:
            return self._verified(request)
        except AccessRefused:
            return UNSIGNED

    def _verified(self, request: Command) -> Account:
        fields = request.ext_fields or {}
        name = fields.get(ACCESS_KEY, "")
        if not name.strip():
            raise _unverified("username cannot be null.")
        user = self.users.get(name)
        # A signature is computed for unknown users as well: the time is the same.
        is_signed = self._is_signed(self._signer(user), request, fields)
        if user is None:
            raise _unverified(f"User:{name[:_BYTES_SHOWN]} is not found.")
        if not user.is_enabled:
            raise _unverified(f"User:{name} is disabled.")
        if not is_signed:
            raise _unverified("check signature failed.")
        return Account(name, user.is_super)

    def _signer(self, user: User | None) -> Signer:
        if user is None:
            return self._nobodys_signer
        known = self._signers.get(user.name)
        if known is None or known[0] != user.password:
            known = user.password, Signer(Credentials(user.name, user.password))
            self._signers[user.name] = known
        return known[1]

    def _is_signed(self, signer: Signer, request: Command, fields: dict[str, str]) -> bool:
        given = java.encode_utf8(fields.get(SIGNATURE, ""))
        is_signed = _is_signature(signer, fields, request.body, given)
        if request.code == RequestCode.QUERY_MESSAGE and UNIQUE_KEY_QUERY in fields:
            # Clients of most versions add this field after they have signed.
            others = {name: text for name, text in fields.items() if name != UNIQUE_KEY_QUERY}
            is_signed |= _is_signature(signer, others, request.body, given)
        # The signature does not say which of two values is meant.
        return is_signed and not request.has_repeats

    # Authorization ------------------------------------------------------------------------------

    def authorize(
        self, account: Account, request: Command, needs: Sequence[Need], address: str
    ) -> None:
        """Check that a user may do what a request needs; see ``RuleSet``."""
        if not self.settings.authorization_enabled:
            self._authorize_without_rules(account, request, address)
            return
        if request.code in self._unruled_codes:
            return
        name = account.name
        user = self._usable(name, is_unsigned=account is UNSIGNED)
        if user.is_super:
            return
        acl = self.acls.get(subject_of(name)) or _NO_RULES
        for need in needs:
            decision = acl.decide(need, address)
            if decision is not Decision.ALLOW:
                reason = "no matched policies" if decision is None else "the decision is deny"
                raise self._refused(name, need, address, reason)

    def _authorize_without_rules(self, account: Account, request: Command, address: str) -> None:
        """Check a request without authorization: only super users may change users."""
        if account is UNSIGNED:
            return
        user = self._usable(account.name, is_unsigned=False)
        if not user.is_super and request.code in NEVER_WHITELISTED:
            raise self._refused(account.name, SUPER_NEED, address, "it is for super users")

    def _usable(self, name: str, *, is_unsigned: bool) -> User:
        """Return a user as it is now. Raises ``AccessRefused``."""
        user = self.users.get(name)
        if user is None:
            shown = "username cannot be null." if is_unsigned else f"User:{name} not found."
            raise AccessRefused(ResponseCode.NO_PERMISSION, shown)
        if not user.is_enabled:
            raise AccessRefused(ResponseCode.NO_PERMISSION, f"User:{name} is disabled.")
        return user

    def _refused(self, name: str, need: Need, address: str, reason: str) -> AccessRefused:
        resource = f"{need.type.text}:{need.name[:_BYTES_SHOWN]}"
        if not need.actions:
            resource = f"Cluster:{self._cluster_name}"
        return AccessRefused(
            ResponseCode.NO_PERMISSION,
            f"User:{name} has no permission to access {resource} from {address}, {reason}.",
        )


def _is_signature(signer: Signer, fields: dict[str, str], body: bytes, given: bytes) -> bool:
    expected = signer.signature(signing.content(fields, body))
    return hmac.compare_digest(expected.encode("ascii"), given)


def _unverified(text: str) -> AccessRefused:
    return AccessRefused(ResponseCode.NO_PERMISSION, text, is_unverified=True)


# --- the start ------------------------------------------------------------------------


def load(
    root: str, disk: Disk, settings: AccessSettings, cluster_name: str, now_ms: int
) -> UserRules:
    """Return the users and rules of a store; create the first users.

    Args:
        root: Folder of the store.
        disk: Writes the tables.
        settings: Which requests are checked, and the first users.
        cluster_name: Name of the cluster.
        now_ms: The time in ms.

    Raises:
        CorruptRecord: A table cannot be read.
        InvalidOption: The users are in the RocksDB store of a Java broker.
        WriteFailed: The users cannot be saved.
    """
    users, acls = UserTable.load(root, disk), AclTable.load(root, disk)
    if users.is_new and Path(root, paths.JAVA_USERS).exists():
        raise InvalidOption(
            "authenticationEnabled",
            "true",
            f"false as long as {root}/config/users is the RocksDB store of a Java broker, which "
            "is not read here. Start with another storePathRootDir or without that folder, and "
            "copy the users and rules from the running Java broker: mqadmin copyUser, copyAcl, or "
            "reput access user copy, reput access acl copy",
        )
    for name, password in settings.first_users.items():
        if users.get(name) is None:
            users.put(User(name, password, UserType.SUPER))
    for table in (users, acls):
        if table.is_dirty:
            table.save(now_ms)
    return UserRules(settings, users, acls, cluster_name)
