"""Codes 3001 to 3010: users and rules of access control 2.0.

Checks, codes and texts are those of rocketmq 5.5.0 ``AdminBrokerProcessor``,
``AuthenticationMetadataManagerImpl`` and ``AuthorizationMetadataManagerImpl``. Passwords are
returned to super users only. A change is in force at once, and durable when the reply is sent.
"""

import logging
from collections.abc import Iterable
from typing import TypeVar

from reput.broker import limits
from reput.broker.access.acls import policies_of, subject_of
from reput.broker.access.policy import Acl, Rule, merged, network
from reput.broker.access.user_rules import UserRules
from reput.broker.access.users import User
from reput.broker.parts import Parts
from reput.broker.tables import writes
from reput.errors import InvalidOption, RequestRefused, excerpt
from reput.format import bodies, command as commands, headers
from reput.format.access import (
    Action,
    Decision,
    NamedNumber,
    PolicyType,
    Resource,
    UserStatus,
    UserType,
    parse_resource,
)
from reput.format.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AclFilterHeader,
    DeleteAclHeader,
    SubjectHeader,
    UserFilterHeader,
    UserHeader,
)
from reput.remoting.channel import Channel
from reput.remoting.long_replies import LIGHT_CHUNK, LongBody, chunks
from reput.remoting.server import LongReply
from reput.secret import Secret
from reput.store.tables.saved_table import SavedTable

_E = TypeVar("_E", bound=NamedNumber)

_log = logging.getLogger(__name__)


# --- users ----------------------------------------------------------------------------


def create_user(parts: Parts, channel: Channel, request: Command) -> None:
    """Create a user."""
    rules = _rules(parts)
    name, wanted = _wanted_user(request)
    kind = UserType.NORMAL if not wanted.user_type else _parsed(UserType, wanted.user_type)
    if kind is UserType.SUPER and not _is_super(parts):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user"
        )
    if not (wanted.password or "").strip():
        raise _refused("password can not be blank")
    if rules.users.get(name) is not None:
        raise _refused("The user is existed")
    limits.USER_NAME_LETTERS.check(len(name))
    limits.PASSWORD_LETTERS.check(len(wanted.password or ""))
    limits.USERS.check(len(rules.users) + 1)
    if not name.isprintable():
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"user {name!r}: allowed: text without control characters",
        )
    status = UserStatus.ENABLE
    if wanted.user_status:
        status = _parsed(UserStatus, wanted.user_status)
    rules.users.put(User(name, Secret(wanted.password or ""), kind, status))
    _log.warning("user %r (%s) made by %s", name, kind.text, _sender(parts, channel))
    _answer(parts, channel, request, rules.users)


def update_user(parts: Parts, channel: Channel, request: Command) -> None:
    """Change the password, type or status of a user."""
    rules = _rules(parts)
    name, wanted = _wanted_user(request)
    kind = _parsed(UserType, wanted.user_type) if wanted.user_type else None
    if kind is UserType.SUPER and not _is_super(parts):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "The super user can only be update by super user"
        )
    user = rules.users.get(name)
    if user is None:
        raise _refused("The user is not exist")
    _check_may_change(parts, user)
    if wanted.password and wanted.password.strip():
        limits.PASSWORD_LETTERS.check(len(wanted.password))
        user = user._replace(password=Secret(wanted.password))
    if wanted.user_status:
        user = user._replace(status=_parsed(UserStatus, wanted.user_status))
    if kind is not None:
        user = user._replace(type=kind)
    rules.users.put(user)
    _log.warning("user %r changed by %s", name, _sender(parts, channel))
    _answer(parts, channel, request, rules.users)


def delete_user(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Delete a user with its rules, if it exists."""
    rules = _rules(parts)
    name = headers.decode(UserHeader, request.ext_fields).username or ""
    if not name.strip():
        raise _refused("username can not be blank")
    user = rules.users.get(name)
    if user is None:
        return commands.reply(request)
    _check_may_change(parts, user)
    rules.users.delete(name)
    rules.acls.delete(subject_of(name))
    _log.warning("user %r deleted by %s", name, _sender(parts, channel))
    _answer(parts, channel, request, rules.users, rules.acls)
    return None


def user(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return a user; success without a body if there is none."""
    known = _rules(parts).users.get(_user_name(request))
    if known is None:
        return commands.reply(request)
    info = _user_info(known, has_password=_is_super(parts))
    return commands.reply(request, body=bodies.encode(info))


def users(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the users whose names contain a text."""
    wanted = headers.decode(UserFilterHeader, request.ext_fields).filter or ""
    has_password = _is_super(parts)
    listed = LongBody("users; filter names some of them")
    for chunk in chunks(_rules(parts).users.all(), LIGHT_CHUNK):
        listed.add(*(_user_info(known, has_password) for known in chunk if wanted in known.name))
        yield
    return commands.reply(request, body=listed.as_list() if len(listed) else b"")


def _wanted_user(request: Command) -> tuple[str, UserInfo]:
    name = _user_name(request)
    return name, bodies.decode(UserInfo, request.body) if request.body else UserInfo()


def _user_name(request: Command) -> str:
    name = headers.decode(UserHeader, request.ext_fields).username
    if not name:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    if not name.strip():
        raise _refused("username can not be blank")
    return name


def _check_may_change(parts: Parts, user: User) -> None:
    if user.is_super and not _is_super(parts):
        raise _refused("The super user can only be update by super user")


def _user_info(user: User, has_password: bool) -> UserInfo:
    return UserInfo(
        password=user.password.reveal() if has_password else "",
        user_status=user.status.text,
        user_type=user.type.text,
        username=user.name,
    )


# --- rules ----------------------------------------------------------------------------


def set_acl(parts: Parts, channel: Channel, request: Command) -> None:
    """Add rules of a user, or replace those of the same resources."""
    rules = _rules(parts)
    header = headers.decode(SubjectHeader, request.ext_fields)
    wanted = bodies.decode(AclInfo, request.body) if request.body else AclInfo()
    subject = _subject(rules, wanted.subject or header.subject, "The subject of {} is not exist.")
    changes = _wanted_rules(wanted)
    known = rules.acls.get(subject) or Acl()
    acl = Acl(
        merged(known.custom, changes[PolicyType.CUSTOM]),
        merged(known.default, changes[PolicyType.DEFAULT]),
    )
    limits.USER_RULES.check(len(acl.custom) + len(acl.default), subject)
    rules.acls.put(subject, acl)
    _log.warning("rules of %r changed by %s", subject, _sender(parts, channel))
    _answer(parts, channel, request, rules.acls)


def delete_acl(parts: Parts, channel: Channel, request: Command) -> None:
    """Remove the rule of a resource, or all rules of a user."""
    rules = _rules(parts)
    header = headers.decode(DeleteAclHeader, request.ext_fields)
    subject = _subject(rules, header.subject)
    kind = PolicyType.CUSTOM
    if header.policy_type:
        kind = _parsed(PolicyType, header.policy_type)
    known = rules.acls.get(subject)
    if known is None:
        raise _refused("The acl is not exist.")
    if header.resource:
        resource = _resource(header.resource)
        left = Acl(
            _without(known.custom, resource if kind is PolicyType.CUSTOM else None),
            _without(known.default, resource if kind is PolicyType.DEFAULT else None),
        )
    else:
        left = Acl()
    if left == Acl():
        rules.acls.delete(subject)
    else:
        rules.acls.put(subject, left)
    _log.warning("rules of %r removed by %s", subject, _sender(parts, channel))
    _answer(parts, channel, request, rules.acls)


def acl(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the rules of a user; success without a body if it has none."""
    rules = _rules(parts)
    subject = _subject(rules, headers.decode(SubjectHeader, request.ext_fields).subject)
    known = rules.acls.get(subject)
    if known is None:
        return commands.reply(request)
    return commands.reply(request, body=bodies.encode(_acl_info(subject, known)))


def acls(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the rules of the users, and of the resources, whose names contain a text."""
    header = headers.decode(AclFilterHeader, request.ext_fields)
    listed = LongBody("rules of all users; subjectFilter names some of them")
    for subject, known in _rules(parts).acls.all():
        if (header.subject_filter or "") in subject:
            filtered = Acl(
                _with(known.custom, header.resource_filter or ""),
                _with(known.default, header.resource_filter or ""),
            )
            if filtered != Acl():
                listed.add(_acl_info(subject, filtered))
        yield
    return commands.reply(request, body=listed.as_list() if len(listed) else b"")


def _without(rules: Iterable[Rule], resource: Resource | None) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if rule.resource != resource)


def _with(rules: Iterable[Rule], text: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if text in rule.resource.text)


def _subject(rules: UserRules, text: str | None, unknown: str = "The subject is not exist.") -> str:
    """Return a subject, whose user exists. Raises ``RequestRefused``."""
    kind, separator, name = (text or "").partition(":")
    if not separator or not name or kind.lower() != "user":
        raise _refused("The subject is null.")
    subject = subject_of(name)
    if rules.users.get(name) is None:
        raise _refused(unknown.format(excerpt(subject)))
    return subject


def _wanted_rules(wanted: AclInfo) -> dict[PolicyType, list[Rule]]:
    if not wanted.policies:
        raise _refused("The policies is empty.")
    rules: dict[PolicyType, list[Rule]] = {kind: [] for kind in PolicyType}
    for policy in wanted.policies:
        kind = _parsed(PolicyType, policy.policy_type) if policy.policy_type else PolicyType.CUSTOM
        if not policy.entries:
            raise _refused("The policies is empty.")
        rules[kind] += [_rule(entry) for entry in policy.entries]
    return rules


def _rule(entry: PolicyEntryInfo) -> Rule:
    """Return a wanted rule. Raises ``RequestRefused``."""
    resource = _resource(entry.resource or "")
    actions = frozenset(
        _parsed(Action, text, "The actions is empty.") for text in entry.actions or ()
    )
    if not actions:
        raise _refused("The actions is empty.")
    if actions & {Action.ANY, Action.UNKNOWN}:
        raise _refused("The actions can not be Any.")
    for text in entry.source_ips or ():
        _check_source(text)
    decision = _parsed(Decision, entry.decision or "", "The decision is null or illegal.")
    return Rule(resource, actions, decision, tuple(entry.source_ips or ()))


def _check_source(text: str) -> None:
    if not text.strip():
        raise _refused("The source ip is empty.")
    try:
        network(text)
    except InvalidOption:
        raise _refused("The source ip is invalid.") from None


def _resource(text: str) -> Resource:
    limits.RESOURCE_LETTERS.check(len(text))
    try:
        return parse_resource(text)
    except InvalidOption as error:
        raise _refused(f"The resource is null. {error}") from error


def _acl_info(subject: str, acl: Acl) -> AclInfo:
    policies = [
        PolicyInfo(
            policy_type=policy["policyType"],
            entries=[
                PolicyEntryInfo(
                    resource=entry["resource"],
                    actions=entry["actions"],
                    source_ips=entry["sourceIps"] or None,
                    decision=entry["decision"],
                )
                for entry in policy["entries"]
            ],
        )
        for policy in policies_of(acl)
    ]
    return AclInfo(subject=subject, policies=policies)


# --- both -----------------------------------------------------------------------------


def _rules(parts: Parts) -> UserRules:
    """Return the users and rules. Raises ``RequestRefused``."""
    rules = None if parts.access is None else parts.access.rules
    if not isinstance(rules, UserRules):
        raise _refused("authenticationEnabled is false: set it and initAuthenticationUser first")
    return rules


def _is_super(parts: Parts) -> bool:
    requester = None if parts.access is None else parts.access.requester
    return requester is not None and requester.is_super


def _sender(parts: Parts, channel: Channel) -> str:
    """Return the sender of a request for the log."""
    requester = None if parts.access is None else parts.access.requester
    return f"{requester.name if requester else '?'!r} at {channel.peer}"


def _parsed(kind: type[_E], text: str, problem: str = "") -> _E:
    """Return the value of a name. Raises ``RequestRefused``, with the problem as Java names it."""
    try:
        return kind.parse(text)
    except InvalidOption as error:
        raise _refused(f"{problem} {error}".strip()) from error


def _refused(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, text)


def _answer(parts: Parts, channel: Channel, request: Command, *tables: SavedTable) -> None:
    """Reply when the changed tables are durable; held requests that lose permission end at once."""
    if parts.access is not None:
        parts.access.end_revoked()

    async def save() -> None:
        for table in tables:
            await writes.write_table(
                table, parts.disk_thread, parts.clock, parts.write_failures, is_durable=True
            )

    parts.setting_requests.answer(channel, request, save)
