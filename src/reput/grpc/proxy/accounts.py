"""The users and rules of the brokers of a proxy, which the proxy reads with its own user.

Source: rocketmq-proxy 5.5.0 ``ProxyAuthenticationMetadataProvider``, ``ClusterMetadataService``.
"""

from collections.abc import Iterable

import msgspec

from reput.broker.access.acls import acl_of, subject_of
from reput.broker.access.policy import Acl
from reput.broker.access.refusals import AccessRefusals
from reput.broker.access.rules import AccessRefused, Need
from reput.broker.access.users import User, user_of
from reput.client.core import requests
from reput.clock import Clock
from reput.errors import REMARK_LETTERS, InvalidOption, ReputError, broker_error, excerpt
from reput.format import bodies, headers
from reput.format.access import Decision
from reput.format.bodies import AclInfo, UserInfo
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.signing import Signer
from reput.grpc import limits
from reput.grpc.access import CODES, NAME_LETTERS_SHOWN, Signers
from reput.grpc.proxy.aging_cache import AgingCache
from reput.grpc.proxy.cluster import FRESH_MS, KEPT_MS, Cluster
from reput.grpc.statuses import Code, StatusError

_NO_RULES = Acl()


class RemoteAccounts:
    """The users of brokers with access control 2.0.

    Args:
        cluster: The brokers.
        clock: The clock.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self.refusals = AccessRefusals(clock.monotonic_ms)
        self._signers = Signers()
        self._users = AgingCache(
            self._load_user,
            clock,
            fresh_ms=FRESH_MS,
            kept_ms=KEPT_MS,
            count_max=limits.PROXY_KNOWN,
        )
        self._acls = AgingCache(
            self._load_acl,
            clock,
            fresh_ms=FRESH_MS,
            kept_ms=KEPT_MS,
            count_max=limits.PROXY_KNOWN,
        )

    async def close(self) -> None:
        """Cancel the running loads."""
        await self._users.close()
        await self._acls.close()

    async def signer(self, name: str) -> Signer:
        """Return the signer of a user.

        Raises:
            AccessRefused: It is unknown or disabled.
            StatusError: Users cannot be read.
        """
        user = await self._user(name)
        return self._signers.of(name, user.password)

    async def _user(self, name: str) -> User:
        user = await self._users.get(name)
        if user is None or not user.is_enabled:
            what = "not found" if user is None else "disabled"
            text = f"User:{name[:NAME_LETTERS_SHOWN]} is {what}."
            raise AccessRefused(ResponseCode.NO_PERMISSION, text, is_unverified=True)
        return user

    async def authorize(self, name: str, needs: Iterable[Need], address: str) -> None:
        """Check the needs of a call.

        Raises:
            AccessRefused: The user may not make it.
            StatusError: Rules cannot be read.
        """
        if (await self._user(name)).is_super:
            return
        acl = await self._acls.get(name) or _NO_RULES
        for need in needs:
            decision = acl.decide(need, address)
            if decision is not Decision.ALLOW:
                reason = "no matched policies" if decision is None else "the decision is deny"
                resource = f"{need.type.text}:{need.name[:NAME_LETTERS_SHOWN]}"
                raise AccessRefused(
                    ResponseCode.NO_PERMISSION,
                    f"User:{name} has no permission to access {resource} from {address}, {reason}.",
                )

    def refused(self, method: str, address: str, refusal: AccessRefused) -> None:
        """Count a refused call."""
        text = excerpt(str(refusal), REMARK_LETTERS)
        is_unverified = refusal.is_unverified
        self.refusals.add(address, CODES.get(method, 0), text, is_unverified=is_unverified)

    # Reading ----------------------------------------------------------------------------------

    async def _load_user(self, name: str) -> User | None:
        header = headers.UserHeader(username=name)
        body = await self._read(requests.make(RequestCode.AUTH_GET_USER, header))
        if not body:
            return None
        info = bodies.decode(UserInfo, body)
        try:
            return user_of(
                name,
                {
                    "password": info.password,
                    "userType": info.user_type or "Normal",
                    "userStatus": info.user_status or "enable",
                },
            )
        except InvalidOption as error:
            # Brokers show passwords to super users alone.
            raise _unreadable(f"user {name[:NAME_LETTERS_SHOWN]}: {error}") from None

    async def _load_acl(self, name: str) -> Acl | None:
        header = headers.SubjectHeader(subject=subject_of(name))
        body = await self._read(requests.make(RequestCode.AUTH_GET_ACL, header))
        if not body:
            return None
        try:
            return acl_of(msgspec.to_builtins(bodies.decode(AclInfo, body)))
        except (InvalidOption, KeyError, TypeError) as error:
            raise _unreadable(f"rules of {name[:NAME_LETTERS_SHOWN]}: {error}") from None

    async def _read(self, request: Command) -> bytes:
        """Return the body of the first broker's reply.

        Raises:
            StatusError: None answers, or this proxy may not ask.
        """
        try:
            reply = await self._cluster.ask_any(request)
            if reply.code != ResponseCode.SUCCESS:
                raise broker_error(reply.code, reply.remark)
        except ReputError as error:
            raise _unreadable(str(error)) from error
        return bytes(reply.body)


def _unreadable(text: str) -> StatusError:
    return StatusError(
        Code.INTERNAL_SERVER_ERROR, f"users and rules cannot be read from the brokers: {text}"
    )
