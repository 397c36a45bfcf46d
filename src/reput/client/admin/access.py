"""Users and rules of access control 2.0 (brokers of 5.3 and later)."""

from typing import NamedTuple

from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.format import bodies, headers
from reput.format.access import PolicyType, UserStatus, UserType
from reput.format.bodies import AclInfo, UserInfo
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.secret import NO_SECRET, Secret


class AccessUser(NamedTuple):
    """A user of brokers."""

    name: str
    type: UserType
    status: UserStatus
    password: Secret = NO_SECRET
    """Password; brokers return it to super users only, and others get an empty one."""


# --- users ------------------------------------------------------------------------------


async def create_user(
    admin: AdminConnection,
    user: str,
    password: Secret,
    *,
    user_type: UserType = UserType.NORMAL,
    status: UserStatus = UserStatus.ENABLE,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Create a user, which signs its requests with a password.

    Args:
        user: Its name.
        password: Its password.
        user_type: Normal, or Super for everything.
        status: Whether it may do anything.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.

    Returns:
        The addresses of the brokers.

    Raises:
        InvalidOption: The target is ambiguous.
        PartlyDone: Some brokers failed.
    """
    wanted = AccessUser(user, user_type, status, password)
    return await _put_user(admin, RequestCode.AUTH_CREATE_USER, _info(wanted), cluster, broker)


async def update_user(
    admin: AdminConnection,
    user: str,
    *,
    password: Secret | None = None,
    user_type: UserType | None = None,
    status: UserStatus | None = None,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Change a user; None leaves a value unchanged. Returns and raises as ``create_user``.

    Args:
        user: Its name.
        password: New password.
        user_type: New type.
        status: New status.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.
    """
    info = UserInfo(
        username=user,
        password=password.reveal() if password else None,
        user_type=user_type.text if user_type else None,
        user_status=status.text if status else None,
    )
    return await _put_user(admin, RequestCode.AUTH_UPDATE_USER, info, cluster, broker)


async def _put_user(
    admin: AdminConnection,
    code: RequestCode,
    info: UserInfo,
    cluster: str | None,
    broker: str | None,
) -> list[str]:
    header = headers.UserHeader(username=info.username)
    return await _change_masters(admin, code, header, cluster, broker, bodies.encode(info))


async def delete_user(
    admin: AdminConnection, user: str, *, cluster: str | None = None, broker: str | None = None
) -> None:
    """Delete a user with its rules, if it exists.

    Args:
        user: Its name.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.

    Raises:
        InvalidOption: The target is ambiguous.
        PartlyDone: Some brokers failed.
    """
    header = headers.UserHeader(username=user)
    await _change_masters(admin, RequestCode.AUTH_DELETE_USER, header, cluster, broker)


async def user(
    admin: AdminConnection, name: str, *, cluster: str | None = None, broker: str | None = None
) -> AccessUser | None:
    """Return a user, of the first broker that has it; None if no broker has it.

    Args:
        name: Its name.
        cluster: Cluster; None: all clusters.
        broker: Name or address of one broker, instead of a cluster.
    """
    header = headers.UserHeader(username=name)
    for reply in await _ask(admin, RequestCode.AUTH_GET_USER, header, cluster, broker):
        if reply.body:
            return _user(bodies.decode(UserInfo, reply.body))
    return None


async def users(
    admin: AdminConnection,
    name_filter: str = "",
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> dict[str, AccessUser]:
    """Return the users, by name.

    Args:
        name_filter: Only users whose names contain this text.
        cluster: Cluster; None: all clusters.
        broker: Name or address of one broker, instead of a cluster.
    """
    header = headers.UserFilterHeader(filter=name_filter)
    by_name: dict[str, AccessUser] = {}
    for reply in await _ask(admin, RequestCode.AUTH_LIST_USER, header, cluster, broker):
        listed = bodies.decode(list[UserInfo], reply.body) if reply.body else []
        by_name.update((info.username or "", _user(info)) for info in listed)
    return dict(sorted(by_name.items()))


def _info(known: AccessUser) -> UserInfo:
    return UserInfo(
        username=known.name,
        password=known.password.reveal(),
        user_type=known.type.text,
        user_status=known.status.text,
    )


def _user(info: UserInfo) -> AccessUser:
    return AccessUser(
        name=info.username or "",
        type=UserType.parse(info.user_type) if info.user_type else UserType.NORMAL,
        status=UserStatus.parse(info.user_status) if info.user_status else UserStatus.ENABLE,
        password=Secret(info.password or ""),
    )


# --- rules ------------------------------------------------------------------------------


async def create_acl(
    admin: AdminConnection,
    acl: AclInfo,
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Add rules of a user. A rule replaces that of the same resource and policy.

    Args:
        acl: Its subject, ``User:NAME``, and the rules.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.

    Returns:
        The addresses of the brokers.

    Raises:
        InvalidOption: The target is ambiguous.
        PartlyDone: Some brokers failed.
    """
    return await _put_acl(admin, RequestCode.AUTH_CREATE_ACL, acl, cluster, broker)


async def update_acl(
    admin: AdminConnection,
    acl: AclInfo,
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Change rules of a user; rules of other resources remain. Same as ``create_acl``."""
    return await _put_acl(admin, RequestCode.AUTH_UPDATE_ACL, acl, cluster, broker)


async def _put_acl(
    admin: AdminConnection,
    code: RequestCode,
    acl: AclInfo,
    cluster: str | None,
    broker: str | None,
) -> list[str]:
    header = headers.SubjectHeader(subject=acl.subject)
    return await _change_masters(admin, code, header, cluster, broker, bodies.encode(acl))


async def delete_acl(
    admin: AdminConnection,
    subject: str,
    resource: str | None = None,
    *,
    policy: PolicyType = PolicyType.CUSTOM,
    cluster: str | None = None,
    broker: str | None = None,
) -> None:
    """Delete the rule of a resource, or all rules of a user.

    Args:
        subject: ``User:NAME``.
        resource: Resource of the rule, such as ``Topic:Orders``; None: all rules.
        policy: Policy that has the rule of the resource.
        cluster: Cluster; optional if there is only one.
        broker: Name or address of one broker, instead of a cluster.

    Raises:
        InvalidOption: The target is ambiguous.
        PartlyDone: Some brokers failed.
    """
    header = headers.DeleteAclHeader(subject=subject, policy_type=policy.text, resource=resource)
    await _change_masters(admin, RequestCode.AUTH_DELETE_ACL, header, cluster, broker)


async def acl(
    admin: AdminConnection, subject: str, *, cluster: str | None = None, broker: str | None = None
) -> AclInfo | None:
    """Return the rules of a user, of the first broker that has some; None if it has no rule.

    Args:
        subject: ``User:NAME``.
        cluster: Cluster; None: all clusters.
        broker: Name or address of one broker, instead of a cluster.
    """
    header = headers.SubjectHeader(subject=subject)
    for reply in await _ask(admin, RequestCode.AUTH_GET_ACL, header, cluster, broker):
        if reply.body:
            return bodies.decode(AclInfo, reply.body)
    return None


async def acls(
    admin: AdminConnection,
    subject_filter: str = "",
    resource_filter: str = "",
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> dict[str, AclInfo]:
    """Return the rules of all users, by subject.

    Args:
        subject_filter: Only subjects that contain this text.
        resource_filter: Only rules whose resources contain this text.
        cluster: Cluster; None: all clusters.
        broker: Name or address of one broker, instead of a cluster.
    """
    header = headers.AclFilterHeader(subject_filter=subject_filter, resource_filter=resource_filter)
    by_subject: dict[str, AclInfo] = {}
    for reply in await _ask(admin, RequestCode.AUTH_LIST_ACL, header, cluster, broker):
        listed = bodies.decode(list[AclInfo], reply.body) if reply.body else []
        by_subject.update((info.subject or "", info) for info in listed)
    return dict(sorted(by_subject.items()))


# --- brokers ----------------------------------------------------------------------------


async def _change_masters(
    admin: AdminConnection,
    code: RequestCode,
    header: headers.Header,
    cluster: str | None,
    broker: str | None,
    body: bytes = b"",
) -> list[str]:
    """Send a change to the masters of a cluster, or to one broker; return their addresses."""
    return await admin.calls.change_brokers(
        await admin.calls.masters(cluster, broker), lambda: requests.make(code, header, body)
    )


async def _ask(
    admin: AdminConnection,
    code: RequestCode,
    header: headers.Header,
    cluster: str | None,
    broker: str | None,
) -> list[Command]:
    """Return the replies of one broker, or of the masters of one or all clusters."""
    addresses = await admin.calls.masters(cluster, broker, is_one_cluster=False)
    return await admin.calls.ask_all(addresses, lambda: requests.make(code, header))
