"""The settings of a server that clients may change over the network, and their file."""

import asyncio
from collections.abc import Mapping
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from reput import config, limits, remote_settings, small_file
from reput.errors import InvalidBody, InvalidOption, RequestRefused
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.remote_settings import RemoteSettings
from reput.remoting import tls_settings
from reput.remoting.channel import Channel
from reput.remoting.client_faults import ClientFaults
from reput.remoting.request_queue import RequestQueue
from reput.remoting.tls_settings import TlsSettings

_SHOWN = 300
"""Characters of a value in the log."""


class ChangeableConfig(Protocol):
    """Settings of a server."""

    @property
    def config_store_path(self) -> str:
        """File for changed settings."""

    @property
    def fixed_keys(self) -> frozenset[str]:
        """The keys of the black list."""

    @property
    def reput_remote_settings(self) -> RemoteSettings:
        """The settings that clients can change."""


C = TypeVar("C", bound=ChangeableConfig)


class CheckedChange(NamedTuple, Generic[C]):
    """A checked change of settings."""

    changes: dict[str, str]
    """Key -> text, as sent by the client."""
    value: C
    """All settings after the change."""
    others: dict[str, str]
    """All keys without effect after the change."""


class RemoteConfig(Generic[C]):
    """The current settings; a change is written to their file before it is applied.

    Args:
        value: Settings at the start.
        others: Keys without effect that were set; they are written back unchanged.
        tls: Settings of TLS, which cannot be changed; by default RocketMQ's.
    """

    file: ClassVar[str]
    """Name of the file, in errors."""

    def __init__(
        self, value: C, others: Mapping[str, str] | None = None, tls: TlsSettings | None = None
    ) -> None:
        self.value = value
        self.tls = tls or TlsSettings()
        self._others = dict(others or {})

    def text(self) -> str:
        """Return all settings, one ``key=value`` per line; passwords are hidden from clients."""
        pairs = {**self._others, **_pairs(self.value)}
        return _text({key: remote_settings.shown(key, text) for key, text in pairs.items()})

    def plan(self, text: str) -> CheckedChange[C]:
        """Check settings from a client; call ``write`` and ``apply`` before the next plan.

        Args:
            text: Lines ``key=value``.

        Raises:
            RequestRefused: A key cannot be changed.
            InvalidOption: A key is unknown or a value not allowed.
        """
        changes = config.parse_properties(text)
        fixed = sorted(changes.keys() & self.value.fixed_keys)
        if fixed:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"Can not update config in black list. Can not update config path: {fixed[0]} "
                "can be changed only in the file, with a restart",
            )
        remote_settings.check(changes, self.value.reput_remote_settings, file=self.file)
        settings = config.Settings({**_pairs(self.value), **changes})
        value = settings.make(type(self.value))
        for unknown in settings.unknown():
            hint = f"did you mean {unknown.suggestion}?" if unknown.suggestion else "see getConfig"
            raise InvalidOption(unknown.key, changes[unknown.key], f"a key that exists; {hint}")
        others = {**self._others, **{key: changes[key] for key in settings.without_effect}}
        return CheckedChange(changes, value, others)

    def write(self, plan: CheckedChange[C]) -> None:
        """Write settings to their file; can run in any thread. Raises ``WriteFailed``."""
        text = _text({**plan.others, **_pairs(plan.value)})
        small_file.replace_file(self.value.config_store_path, text.encode("ascii"))

    def apply(self, plan: CheckedChange[C]) -> None:
        """Apply settings that ``write`` has written.

        Settings that are read only at the start take effect at the next start.
        """
        self.value, self._others = plan.value, plan.others

    def answer_change(
        self, queue: RequestQueue, events: ClientFaults, channel: Channel, request: Command
    ) -> None:
        """Change settings, as a request asks: all of its lines, or none.

        Args:
            queue: Requests that change settings.
            events: Gets a line about the change.
            channel: The connection.
            request: The request, with lines ``key=value``.

        Raises:
            InvalidBody: The body is no text.
            LimitExceeded: The body is too large, or too many requests are pending.
        """
        limits.SETTINGS_BYTES.check(len(request.body))
        try:
            text = request.body.decode()
        except UnicodeDecodeError as error:
            raise InvalidBody(f"settings are no UTF-8: {error}") from error

        async def change_settings() -> None:
            if not text:
                return
            plan = self.plan(text)
            await asyncio.to_thread(self.write, plan)
            self.apply(plan)
            known = {
                key: remote_settings.shown(key, value)[:_SHOWN]
                for key, value in plan.changes.items()
            }
            events.warn("settings", "settings changed by %s: %s", channel.peer, known)

        queue.answer(channel, request, change_settings)


def load(
    kind: type[C],
    path: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    explicit: Mapping[str, object] | None = None,
) -> tuple[C, dict[str, str], TlsSettings, tuple[config.Unknown, ...]]:
    """Return settings, keys without effect that were set, settings of TLS, and unknown keys.

    Args:
        kind: Type of the settings.
        path: Path of the file. Changed settings are written to it, as in Java.
        environment: ``os.environ``.
        explicit: snake_case field -> value, with the highest precedence.

    Raises:
        InvalidOption: The file cannot be read, or a value is not allowed.
    """
    given: dict[str, object] = {"config_store_path": path} if path is not None else {}
    settings = config.Settings(
        path, environment=environment, explicit={**given, **(explicit or {})}
    )
    value = settings.make(kind)
    tls = tls_settings.load(settings)
    others = {}
    if path is not None:
        known = _pairs(value)
        pairs = config.read_properties(path)
        others = {key: text for key, text in pairs.items() if key not in known}
    return value, others, tls, settings.unknown()


def _pairs(value: object) -> dict[str, str]:
    """Return the settings that are set, in the form of the file."""
    return {key: text for key, text in config.texts(value).items() if text is not None}


def _text(pairs: Mapping[str, str]) -> str:
    return "".join(config.property_line(key, text) for key, text in sorted(pairs.items()))
