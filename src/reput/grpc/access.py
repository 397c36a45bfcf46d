"""Access control: who makes a call, and whether the caller may make it.

    authorization: MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX

The signature is the HMAC-SHA1 of the header ``x-mq-date-time``. It says nothing of the request, and
its age is not checked, as with Java: TLS protects it. Needs, texts and codes are those of rocketmq
5.5.0 ``DefaultAuthenticationContextBuilder``, ``DefaultAuthorizationContextBuilder``; each refusal
is UNAUTHORIZED.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from reput.broker.access.needs import PUB, SUB, group_need, topic_need
from reput.broker.access.rules import AccessRefused, Need
from reput.format.codes import RequestCode, ResponseCode
from reput.format.signing import Credentials, Signer
from reput.grpc.caller import Caller
from reput.grpc.wire.grpc_messages import ClientType
from reput.secret import Secret

AUTHORIZATION, DATE_TIME = "authorization", "x-mq-date-time"
NAME_LETTERS_SHOWN = 200
"""Letters of a name in a refusal."""

CODES = {
    "QueryRoute": RequestCode.GET_ROUTEINFO_BY_TOPIC,
    "QueryAssignment": RequestCode.QUERY_ASSIGNMENT,
    "Heartbeat": RequestCode.HEART_BEAT,
    "Telemetry": RequestCode.HEART_BEAT,
    "NotifyClientTermination": RequestCode.UNREGISTER_CLIENT,
    "SendMessage": RequestCode.SEND_MESSAGE_V2,
    "RecallMessage": RequestCode.RECALL_MESSAGE,
    "EndTransaction": RequestCode.END_TRANSACTION,
    "ReceiveMessage": RequestCode.POP_MESSAGE,
    "AckMessage": RequestCode.ACK_MESSAGE,
    "ChangeInvisibleDuration": RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    "ForwardMessageToDeadLetterQueue": RequestCode.CONSUMER_SEND_MSG_BACK,
}
"""Method -> the request of remoting that does the same, in counts and logs of refusals."""


class Accounts(Protocol):
    """Users and their rules."""

    async def signer(self, name: str) -> Signer:
        """Return the signer of a user: the same one as long as its secret is the same.

        Raises:
            AccessRefused: There is no such user, or it is disabled.
            ReputError: Users cannot be read.
        """

    async def authorize(self, name: str, needs: Iterable[Need], address: str) -> None:
        """Check that a user may do what a call needs.

        Raises:
            AccessRefused: It may not.
            ReputError: Rules cannot be read.
        """

    def refused(self, method: str, address: str, refusal: AccessRefused) -> None:
        """Count a call that was refused."""


class Signers:
    """The signers of users: of each one the same, as long as its secret is the same."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Secret, Signer]] = {}

    def of(self, name: str, secret: Secret) -> Signer:
        """Return the signer of a user."""
        known = self._known.get(name)
        if known is None or known[0] != secret:
            known = self._known[name] = secret, Signer(Credentials(name, secret))
        return known[1]


class Gate:
    """Lets calls pass whose caller may make them.

    Args:
        accounts: Users and their rules.
        authorizes: Whether rules are asked; without, a user suffices.
        unsigned: Methods that need no user.
        unruled: Methods that need no rule.
    """

    def __init__(
        self,
        accounts: Accounts,
        *,
        authorizes: bool = True,
        unsigned: frozenset[str] = frozenset(),
        unruled: frozenset[str] = frozenset(),
    ) -> None:
        self._accounts = accounts
        self._authorizes = authorizes
        self._unsigned = unsigned
        self._unruled = unruled

    async def identify(self, method: str, caller: Caller, header: Callable[[str], str]) -> None:
        """Check who makes a call, by its headers alone, and note the user in the caller.

        Args:
            method: Name of the method.
            caller: The caller.
            header: Returns a header of the call; empty if it has none.

        Raises:
            AccessRefused: It may not be made.
            ReputError: Users cannot be read.
        """
        try:
            caller.user = await self._user(method, caller, header)
            if not caller.user and self._authorizes and method not in self._unruled:
                raise _unverified("username cannot be null.")
        except AccessRefused as refusal:
            self._accounts.refused(method, caller.address[0], refusal)
            raise

    async def authorize(self, method: str, caller: Caller, request: dict[str, Any]) -> None:
        """Check that an identified caller may make a call.

        Args:
            method: Name of the method.
            caller: The caller.
            request: The request.

        Raises:
            AccessRefused: It may not be made.
            ReputError: Rules cannot be read.
        """
        if not self._authorizes or method in self._unruled:
            return
        try:
            needs = needs_of(method, request)
            await self._accounts.authorize(caller.user, needs, caller.address[0])
        except AccessRefused as refusal:
            self._accounts.refused(method, caller.address[0], refusal)
            raise

    async def _user(self, method: str, caller: Caller, header: Callable[[str], str]) -> str:
        """Return the name of the user; empty for an anonymous request that is allowed."""
        try:
            name, signature = credentials_of(header(AUTHORIZATION))
            if not name:
                raise _unverified("username cannot be null.")
            date = header(DATE_TIME)
            if not date:
                raise _unverified("datetime is null.")
            signer = await self._accounts.signer(name)
            if not hmac.compare_digest(signer.digest(date.encode()), signature):
                raise _unverified("check signature failed.")
        except AccessRefused:
            if method in self._unsigned:
                return ""
            raise
        caller.signer = signer
        return name


def credentials_of(header: str) -> tuple[str, bytes]:
    """Return access key and signature of an ``authorization`` header; empty without a header.

    Raises:
        AccessRefused: It has another form.
    """
    if not header:
        return "", b""
    _, space, text = header.partition(" ")
    if not space:
        raise _unverified("authentication header is incorrect.")
    name, signature = "", b""
    for word in text.split(","):
        key, equal, value = word.strip().partition("=")
        if not equal:
            raise _unverified("authentication keyValues length is incorrect, actual length=1.")
        if key == "Credential":
            name = value.partition("/")[0]
        elif key == "Signature":
            try:
                signature = bytes.fromhex(value)
            except ValueError:
                raise _unverified("create authentication context error.") from None
    return name, signature


def _unverified(text: str) -> AccessRefused:
    return AccessRefused(ResponseCode.NO_PERMISSION, text, is_unverified=True)


# --- what calls need ----------------------------------------------------------------


def needs_of(method: str, request: Mapping[str, Any]) -> list[Need]:
    """Return the needs of a call; names that are missing are refused by its own checks."""
    rule = _RULES.get(method)
    return [need for need in rule(request) if need.name] if rule is not None else []


def _name(request: Mapping[str, Any], field: str) -> str:
    name: str = request.get(field, {}).get("name", "")
    return name


def _publishes(request: Mapping[str, Any]) -> Iterable[Need]:
    yield topic_need(_name(request, "topic"), PUB)


def _sends(request: Mapping[str, Any]) -> Iterable[Need]:
    names = {_name(message, "topic") for message in request.get("messages", ())}
    return (topic_need(name, PUB) for name in sorted(names))


def _of_group(request: Mapping[str, Any]) -> Iterable[Need]:
    yield group_need(_name(request, "group"), SUB)


def _reads(request: Mapping[str, Any]) -> Iterable[Need]:
    yield from _of_group(request)
    yield topic_need(_name(request, "topic"), SUB)


def _receives(request: Mapping[str, Any]) -> Iterable[Need]:
    yield from _of_group(request)
    yield topic_need(_name(request.get("message_queue", {}), "topic"), SUB)


def _routes(request: Mapping[str, Any]) -> Iterable[Need]:
    yield topic_need(_name(request, "topic"), PUB | SUB)


def _beats(request: Mapping[str, Any]) -> Iterable[Need]:
    return () if request.get("client_type") == ClientType.PRODUCER else _of_group(request)


def _sets(request: Mapping[str, Any]) -> Iterable[Need]:
    settings = request.get("settings", {})
    for topic in settings.get("publishing", {}).get("topics", ()):
        yield topic_need(topic.get("name", ""), PUB)
    subscription = settings.get("subscription", {})
    yield from _of_group(subscription)
    for entry in subscription.get("subscriptions", ()):
        yield topic_need(_name(entry, "topic"), SUB)


_RULES: dict[str, Callable[[Mapping[str, Any]], Iterable[Need]]] = {
    "QueryRoute": _routes,
    "QueryAssignment": _reads,
    "Heartbeat": _beats,
    "Telemetry": _sets,
    "NotifyClientTermination": _of_group,
    "SendMessage": _sends,
    "RecallMessage": _publishes,
    "EndTransaction": _publishes,
    "ReceiveMessage": _receives,
    "AckMessage": _reads,
    "ChangeInvisibleDuration": _reads,  # Java looks at the group alone
    "ForwardMessageToDeadLetterQueue": _reads,
    "SyncLiteSubscription": _reads,
}
