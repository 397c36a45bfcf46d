"""``reput access``: users and rules of access control 2.0.

Passwords come from files, the environment or a question on the terminal. No command prints them.
"""

import enum
import getpass
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.connecting import CommandFailed
from reput.cli.credentials import read_secret
from reput.cli.options import CLUSTER, MASTERS, Options, Session, command, option
from reput.cli.printing import Document, Table, View
from reput.errors import InvalidOption
from reput.format.access import PolicyType, Resource, UserStatus, UserType, parse_resource
from reput.secret import Secret

if TYPE_CHECKING:
    from reput.client.admin import AccessUser, Admin
    from reput.format.bodies import AclInfo, PolicyEntryInfo

PASSWORD_VARIABLE = "REPUT_USER_PASSWORD"
"""Variable of the environment: an argument would be visible to other users of the machine."""

_USER_COLUMNS = "broker=broker_name user type status"
_RULE_COLUMNS = "broker=broker_name user policy resource actions decision sources"
_SUBJECT = "User:"


class Type(enum.StrEnum):
    """Type of a user, as written on the command line."""

    NORMAL = "Normal"
    SUPER = "Super"


class Status(enum.StrEnum):
    """Status of a user, as written on the command line."""

    ENABLE = "enable"
    DISABLE = "disable"


class Policy(enum.StrEnum):
    """Policy of a rule, as written on the command line."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Verb(enum.StrEnum):
    """What a rule is about, as written on the command line."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"
    ALL = "All"


UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The name of the user.")]
UsersArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[USER]...", help="Names; without any, all users.")
]
SourceBrokerOption = Annotated[
    str, typer.Option("--from", metavar="NAME", help="Broker to copy from: its name, or host:port.")
]
TargetBrokerOption = Annotated[
    str, typer.Option("--to", metavar="NAME", help="Broker to change: its name, or host:port.")
]
PasswordFileOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File whose only line is the password of the user."),
]
FilterOption = Annotated[
    str, typer.Option("--filter", metavar="TEXT", help="Only users whose names contain this text.")
]
_ANY_PASSWORD = (
    f"--password-file or {PASSWORD_VARIABLE} given, where there is no terminal to ask on"
)


# --- users --------------------------------------------------------------------------------------


@command(*MASTERS)
def create_user(
    session: Session,
    user: UserArgument,
    password_file: PasswordFileOption = None,
    type_: Annotated[
        Type, typer.Option("--type", case_sensitive=False, help="A super user may do everything.")
    ] = Type.NORMAL,
    status: Annotated[
        Status, typer.Option(case_sensitive=False, help="Whether it may do anything.")
    ] = Status.ENABLE,
) -> View:
    """Create a user on the brokers of a cluster, or on one broker.

    Its password is in --password-file or REPUT_USER_PASSWORD, or is typed on the terminal. A user
    that exists is refused. Only super users make super users.
    """
    password = _password(password_file)

    async def work(admin: "Admin") -> list[Document]:
        targets = await session.masters(admin)
        for name in targets:
            if await admin.user(user, broker=name) is not None:
                exists = f"user {user} already exists on {name}"
                raise CommandFailed(f"{exists}; `reput access user update` changes it")
        for name in targets:
            await admin.create_user(
                user,
                password,
                user_type=UserType.parse(type_),
                status=UserStatus.parse(status),
                broker=name,
            )
        return [row for name in targets for row in await _user_rows(admin, user, name)]

    return _users_view(session.ask(work))


@command(*MASTERS)
def update_user(
    session: Session,
    user: UserArgument,
    new_password: Annotated[
        bool,
        typer.Option(
            "--new-password",
            help="Change the password to that of REPUT_USER_PASSWORD, or one typed.",
        ),
    ] = False,
    password_file: PasswordFileOption = None,
    type_: Annotated[
        Type | None,
        typer.Option(
            "--type",
            metavar="Normal|Super",
            case_sensitive=False,
            help="New type; a super user may do everything.",
        ),
    ] = None,
    status: Annotated[
        Status | None,
        typer.Option(
            metavar="enable|disable", case_sensitive=False, help="Whether it may do anything."
        ),
    ] = None,
) -> View:
    """Change a user on the brokers that have it.

    What has no option remains unchanged. The change is in force at once: held requests of a user
    that is disabled end.
    """
    has_password = new_password or password_file is not None
    if not has_password and type_ is None and status is None:
        raise typer.BadParameter("give an option to change, such as --status or --new-password")
    password = _password(password_file) if has_password else None

    async def work(admin: "Admin", name: str) -> list[Document]:
        known = await admin.user(user, broker=name)
        if known is None:
            return []
        changed = known._replace(
            type=UserType.parse(type_) if type_ else known.type,
            status=UserStatus.parse(status) if status else known.status,
        )
        await admin.update_user(
            user,
            password=password,
            user_type=changed.type if type_ else None,
            status=changed.status if status else None,
            broker=name,
        )
        # The broker is not asked again: the user may have changed its own password.
        return [_user_row(name, changed)]

    return _users_view(session.ask_masters(work), user)


@command("yes", *MASTERS)
def delete_user(session: Session, user: UserArgument) -> View:
    """Delete a user and its rules.

    Without --yes it only shows the user and its brokers.
    """

    async def work(admin: "Admin", name: str) -> list[Document]:
        rows = await _user_rows(admin, user, name)
        if rows and session.is_done:
            await admin.delete_user(user, broker=name)
        return rows

    return _users_view(session.ask_masters(work), user, is_deleted=session.is_done)


@command(*MASTERS)
def get_user(session: Session, user: UserArgument) -> View:
    """Show a user on the brokers of a cluster, or on one broker."""
    rows = session.ask_masters(lambda admin, name: _user_rows(admin, user, name))
    return _users_view(rows, user)


@command(*MASTERS)
def list_users(session: Session, filter_: FilterOption = "") -> View:
    """List the users of the brokers."""

    async def work(admin: "Admin", name: str) -> list[Document]:
        known = await admin.users(filter_, broker=name)
        return [_user_row(name, user) for user in known.values()]

    return _users_view(session.ask_masters(work))


@command("yes", *CLUSTER)
def copy_users(
    session: Session,
    source: SourceBrokerOption,
    target: TargetBrokerOption,
    users: UsersArgument = None,
) -> View:
    """Copy users with their passwords from a broker to another.

    Without --yes it only shows them. Users that the other broker has are overwritten. Requires the
    credentials of a super user: others get no passwords.
    """

    async def work(admin: "Admin") -> list[Document]:
        known = await admin.users(broker=source)
        chosen = _chosen(users, known, f"one of the users of {source}")
        present = await admin.users(broker=target)
        for user in chosen:
            if not known[user].password:
                problem = f"{source} returns no password of {user}"
                raise CommandFailed(f"{problem}: --access-key must be that of a super user")
        rows = [
            {**_user_row(target, known[user]), "is_new": user not in present} for user in chosen
        ]
        if session.is_done:
            for user in chosen:
                await _put_user(admin, known[user], target, is_new=user not in present)
        return rows

    rows = session.ask(work)
    document = {"is_done": session.is_done, "from_broker": source, "to_broker": target}
    return View({**document, "users": rows}, Table(f"{_USER_COLUMNS} new=is_new", rows))


async def _put_user(admin: "Admin", user: "AccessUser", broker: str, *, is_new: bool) -> None:
    put = admin.create_user if is_new else admin.update_user
    await put(
        user.name,
        password=user.password,
        user_type=user.type,
        status=user.status,
        broker=broker,
    )


def _password(path: str | None) -> Secret:
    """Return the password of a user. Raises ``InvalidOption``."""
    if path is not None:
        return read_secret("--password-file", path, "password")
    return new_password("--password-file")


def new_password(option: str) -> Secret:
    """Return the password of the environment, or one typed twice. Raises ``InvalidOption``."""
    password = Secret(os.environ.get(PASSWORD_VARIABLE, ""))
    if password:
        return password
    if not sys.stdin.isatty():
        raise InvalidOption(option, None, _ANY_PASSWORD)
    password = Secret(getpass.getpass("Password of the user: "))
    if not password or password != Secret(getpass.getpass("Again: ")):
        raise CommandFailed("the password is empty, or the second one is not the same")
    return password


async def _user_rows(admin: "Admin", user: str, broker: str) -> list[Document]:
    known = await admin.user(user, broker=broker)
    return [_user_row(broker, known)] if known is not None else []


def _user_row(broker: str, user: "AccessUser") -> Document:
    return {
        "broker_name": broker,
        "user": user.name,
        "type": user.type.text,
        "status": user.status.text,
    }


def _users_view(
    rows: list[Document], wanted: str | None = None, *, is_deleted: bool | None = None
) -> View:
    """Return the view of users; raise ``CommandFailed`` if the wanted user is missing."""
    if wanted is not None and not rows:
        raise _no_broker_has(wanted)
    document: Document = {"users": rows}
    if is_deleted is not None:
        document = {"is_deleted": is_deleted, **document}
    return View(document, Table(_USER_COLUMNS, rows))


def _no_broker_has(user: str) -> CommandFailed:
    return CommandFailed(f"no broker has user {user}; `reput access user list` shows the users")


def _chosen(wanted: list[str] | None, known: Iterable[str], allowed: str) -> list[str]:
    """Return the wanted users; all if none are named. Raises ``InvalidOption``."""
    names = sorted(known)
    for name in wanted or ():
        if name not in names:
            raise InvalidOption("USER", name, f"{allowed}: {', '.join(names) or 'none'}")
    return list(dict.fromkeys(wanted or names))


# --- rules --------------------------------------------------------------------------------------

_RULE: Options = {
    "resource": option(
        list[str],
        metavar="TYPE:NAME",
        default=...,
        help="Resource, such as Topic:Orders or 'Group:billing*'; repeatable.",
    ),
    "action": option(
        list[Verb] | None,
        metavar="ACTION",
        case_sensitive=False,
        help="Pub, Sub, Create, Update, Delete, Get, List, or All; repeatable.",
    ),
    "allow": option(bool | None, "--allow/--deny", help="Decision; of a new rule: allow."),
    "source": option(
        list[str] | None,
        metavar="ADDRESS",
        help="Only clients of this address or network, such as 10.0.0.0/8; repeatable.",
    ),
}
_PolicyOption = Annotated[
    Policy,
    typer.Option(
        case_sensitive=False, help="Default rules count only where no custom rule applies."
    ),
]


@command(*MASTERS, settings=_RULE)
def create_acl(
    session: Session, user: UserArgument, settings: Document, policy: _PolicyOption = Policy.CUSTOM
) -> View:
    """Create rules of a user: what it may do with resources, or may not.

    A rule of the same resource that exists is refused.
    """
    if not settings["action"]:
        raise typer.BadParameter("give an --action, such as --action Pub")
    resources = _resources(settings)

    async def work(admin: "Admin") -> list[Document]:
        targets = await session.masters(admin)
        for name in targets:
            for resource, _ in await _known_rules(admin, user, policy, name):
                if resource in resources:
                    exists = f"user {user} already has a rule of {resource.text} on {name}"
                    raise CommandFailed(f"{exists}; `reput access acl update` changes it")
        rules = [_changed(None, resource, settings) for resource in resources]
        for name in targets:
            await admin.create_acl(_acl(user, policy, rules), broker=name)
        return [row for name in targets for row in await _rule_rows(admin, user, name)]

    return _rules_view(session.ask(work))


@command(*MASTERS, settings=_RULE)
def update_acl(
    session: Session, user: UserArgument, settings: Document, policy: _PolicyOption = Policy.CUSTOM
) -> View:
    """Change rules of a user.

    What has no option remains unchanged. The change is in force at once.
    """
    if not settings["action"] and not settings["source"] and settings["allow"] is None:
        raise typer.BadParameter("give an option to change, such as --action or --deny")
    resources = _resources(settings)

    async def work(admin: "Admin") -> list[Document]:
        targets = await session.masters(admin)
        changes = {}
        for name in targets:
            known = dict(await _known_rules(admin, user, policy, name))
            for resource in resources:
                if resource not in known:
                    missing = f"user {user} has no rule of {resource.text} on {name}"
                    raise CommandFailed(f"{missing}; `reput access acl create` adds it")
            changes[name] = [_changed(known[key], key, settings) for key in resources]
        for name, rules in changes.items():
            await admin.update_acl(_acl(user, policy, rules), broker=name)
        return [row for name in targets for row in await _rule_rows(admin, user, name)]

    return _rules_view(session.ask(work))


@command("yes", *MASTERS)
def delete_acl(
    session: Session,
    user: UserArgument,
    resource: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE:NAME", help="Only the rule of this resource; without it, all rules."
        ),
    ] = None,
    policy: Annotated[
        Policy,
        typer.Option(case_sensitive=False, help="With --resource: the policy that has the rule."),
    ] = Policy.CUSTOM,
) -> View:
    """Delete the rules of a user, or that of a resource.

    Without --yes it only shows the rules.
    """
    wanted = parse_resource(resource) if resource is not None else None

    async def work(admin: "Admin", name: str) -> list[Document]:
        rows = [
            row
            for row in await _rule_rows(admin, user, name)
            if wanted is None
            or (row["policy"] == policy and parse_resource(row["resource"]) == wanted)
        ]
        if rows and session.is_done:
            await admin.delete_acl(
                _subject(user),
                wanted.text if wanted is not None else None,
                policy=PolicyType.parse(policy),
                broker=name,
            )
        return rows

    rows = session.ask_masters(work)
    if not rows:
        kind = f"{policy} rule of {wanted.text}" if wanted is not None else "rule"
        raise CommandFailed(f"user {user} has no {kind}; `reput access acl list` shows the rules")
    return _rules_view(rows, is_deleted=session.is_done)


@command(*MASTERS)
def get_acl(session: Session, user: UserArgument) -> View:
    """Show the rules of a user on the brokers of a cluster, or on one broker."""
    return _rules_view(session.ask_masters(lambda admin, name: _rule_rows(admin, user, name)))


@command(*MASTERS)
def list_acls(
    session: Session,
    filter_: FilterOption = "",
    resource: Annotated[
        str, typer.Option(metavar="TEXT", help="Only rules whose resources contain this text.")
    ] = "",
) -> View:
    """List the rules of all users."""

    async def work(admin: "Admin", name: str) -> list[Document]:
        # The broker's filter is of subjects, which all contain "User:".
        known = await admin.acls(filter_, resource, broker=name)
        return [
            row for info in known.values() for row in _rows(name, info) if filter_ in row["user"]
        ]

    return _rules_view(session.ask_masters(work))


@command("yes", *CLUSTER)
def copy_acls(
    session: Session,
    source: SourceBrokerOption,
    target: TargetBrokerOption,
    users: UsersArgument = None,
) -> View:
    """Copy the rules of users from a broker to another, which must have these users.

    Without --yes it only shows them. A copied rule replaces that of the same resource; other rules
    of the other broker remain. Requires the credentials of a super user.
    """

    async def work(admin: "Admin") -> list[Document]:
        by_user = {_name(info): info for info in (await admin.acls(broker=source)).values()}
        chosen = _chosen(users, by_user, f"a user that has rules on {source}")
        present = await admin.users(broker=target)
        for user in chosen:
            if user not in present:
                missing = f"{target} has no user {user}"
                raise CommandFailed(f"{missing}; `reput access user copy` copies it")
        if session.is_done:
            for user in chosen:
                await admin.update_acl(by_user[user], broker=target)
        return [row for user in chosen for row in _rows(target, by_user[user])]

    rows = session.ask(work)
    document = {"is_done": session.is_done, "from_broker": source, "to_broker": target}
    return View({**document, "rules": rows}, Table(_RULE_COLUMNS, rows))


def _resources(settings: Document) -> list[Resource]:
    """Return the resources of ``--resource``. Raises ``InvalidOption``."""
    return list(dict.fromkeys(parse_resource(text) for text in settings["resource"]))


async def _acl_of(admin: "Admin", user: str, broker: str) -> "AclInfo | None":
    """Return the rules of a user on a broker. Raises ``CommandFailed`` if there is no such user."""
    if await admin.user(user, broker=broker) is None:
        missing = f"{broker} has no user {user}"
        raise CommandFailed(f"{missing}; `reput access user list` shows the users")
    return await admin.acl(_subject(user), broker=broker)


async def _known_rules(
    admin: "Admin", user: str, policy: Policy, broker: str
) -> "list[tuple[Resource, PolicyEntryInfo]]":
    """Return the rules of a user in a policy."""
    info = await _acl_of(admin, user, broker)
    return [
        (parse_resource(entry.resource or ""), entry)
        for known in (info and info.policies) or ()
        if known.policy_type == policy
        for entry in known.entries or ()
    ]


async def _rule_rows(admin: "Admin", user: str, broker: str) -> list[Document]:
    info = await _acl_of(admin, user, broker)
    return _rows(broker, info) if info is not None else []


def _changed(
    entry: "PolicyEntryInfo | None", resource: Resource, settings: Document
) -> "PolicyEntryInfo":
    """Return a rule with the given settings; None: a new rule, which allows."""
    from reput.format.bodies import PolicyEntryInfo

    known = entry or PolicyEntryInfo(decision="Allow")
    is_allowed = settings["allow"]
    return PolicyEntryInfo(
        resource=resource.text,
        actions=[action.value for action in settings["action"] or ()] or known.actions,
        source_ips=settings["source"] or known.source_ips,
        decision=known.decision if is_allowed is None else "Allow" if is_allowed else "Deny",
    )


def _acl(user: str, policy: Policy, entries: "list[PolicyEntryInfo]") -> "AclInfo":
    from reput.format.bodies import AclInfo, PolicyInfo

    policies = [PolicyInfo(policy_type=policy.value, entries=entries)]
    return AclInfo(subject=_subject(user), policies=policies)


def _subject(user: str) -> str:
    return _SUBJECT + user


def _name(info: "AclInfo") -> str:
    return (info.subject or "").removeprefix(_SUBJECT)


def _rows(broker: str, info: "AclInfo") -> list[Document]:
    return [
        {
            "broker_name": broker,
            "user": _name(info),
            "policy": policy.policy_type,
            "resource": entry.resource,
            "actions": entry.actions or [],
            "decision": entry.decision,
            "sources": entry.source_ips or [],
        }
        for policy in info.policies or ()
        for entry in policy.entries or ()
    ]


def _rules_view(rows: list[Document], *, is_deleted: bool | None = None) -> View:
    document: Document = {"rules": rows}
    if is_deleted is not None:
        document = {"is_deleted": is_deleted, **document}
    return View(document, Table(_RULE_COLUMNS, rows))


COMMANDS = {
    "user": (
        "Users, which sign their requests with a password.",
        {
            "create": create_user,
            "update": update_user,
            "delete": delete_user,
            "get": get_user,
            "list": list_users,
            "copy": copy_users,
        },
    ),
    "acl": (
        "Rules of what users may do.",
        {
            "create": create_acl,
            "update": update_acl,
            "delete": delete_acl,
            "get": get_acl,
            "list": list_acls,
            "copy": copy_acls,
        },
    ),
}
