"""Takes the accounts of access control 1.0 over as users of access control 2.0, at a start.

Admins become super users. Permissions of topics and groups become rules; the default permissions
become rules of the default policy, which count where no other one applies. White addresses are
dropped, and the trace topic needs a rule. Users that exist stay as they are. As in Java, what an
own permission leaves out is allowed if the default one has it; that is logged.
Source: rocketmq 5.5.0 ``AuthMigrator``.
"""

import logging

from reput.broker.access.acls import AclTable, subject_of
from reput.broker.access.plain_accounts import (
    Permission,
    PlainAccount,
    PlainAccounts,
)
from reput.broker.access.policy import Acl, Rule
from reput.broker.access.users import User, UserTable
from reput.format import names
from reput.format.access import (
    ANYTHING,
    Action,
    Decision,
    Resource,
    ResourcePattern,
    ResourceType,
    UserType,
)

_ACTIONS = {Permission.PUB: Action.PUB, Permission.SUB: Action.SUB}

_log = logging.getLogger(__name__)


def migrate(accounts: PlainAccounts, users: UserTable, acls: AclTable, now_ms: int) -> None:
    """Add users and rules for the accounts that are no users yet, and save them.

    Raises:
        WriteFailed: They cannot be saved.
    """
    for name, account in accounts.accounts.items():
        if users.get(name) is not None:
            continue
        kind = UserType.SUPER if account.is_admin else UserType.NORMAL
        acl = _acl_of(account)
        if acl.custom or acl.default:
            acls.put(subject_of(name), acl)
        users.put(User(name, account.secret_key, kind))
        _log.warning("account %r of access control 1.0 is a user now (%s)", name, kind.text)
    # The rules first: a user without its rules would not get them at the next start.
    for table in (acls, users):
        if table.is_dirty:
            table.save(now_ms)


def _acl_of(account: PlainAccount) -> Acl:
    custom = []
    for name, permission in account.permissions.items():
        is_group = names.is_retry_topic(name)
        kind = ResourceType.GROUP if is_group else ResourceType.TOPIC
        own_name = name.removeprefix(names.RETRY_PREFIX) if is_group else name
        if not own_name or own_name.endswith(ANYTHING):
            # There is no such topic; as a rule it would be about all with that beginning.
            _log.warning("account %r: no rule for %r", account.access_key, name)
            continue
        default_permission = account.default_group if is_group else account.default_topic
        added = default_permission & ~permission & (Permission.PUB | Permission.SUB)
        if added and not permission & Permission.DENY:
            # One rule for a resource either allows or denies, so it cannot exclude the default.
            _log.warning(
                "user %r may also %s %s %r, by its default permission: deny it if it should not",
                account.access_key,
                " and ".join(action.text for flag, action in _ACTIONS.items() if added & flag),
                kind.text,
                own_name,
            )
        custom.append(_rule(Resource(kind, own_name, ResourcePattern.LITERAL), permission))
    default = [
        _rule(Resource(kind, "", ResourcePattern.ANY), permission)
        for kind, permission in (
            (ResourceType.TOPIC, account.default_topic),
            (ResourceType.GROUP, account.default_group),
        )
        if permission is not Permission.DENY  # no rule denies as well
    ]
    return Acl(tuple(custom), tuple(default))


def _rule(resource: Resource, permission: Permission) -> Rule:
    if permission & Permission.DENY:
        return Rule(resource, frozenset({Action.ALL}), Decision.DENY)
    actions = frozenset(action for flag, action in _ACTIONS.items() if permission & flag)
    return Rule(resource, actions, Decision.ALLOW)
