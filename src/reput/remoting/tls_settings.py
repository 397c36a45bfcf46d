"""The settings of TLS, with RocketMQ's keys, and the contexts that are made from them.

    broker.conf, namesrv.conf   -> load -> TlsSettings -> server_context, client_context
    file of ``tls.config.file``

RocketMQ has the keys as system properties of Java. Where it continues without protection (a missing
key, an unknown value), this refuses to start.
"""

import dataclasses
import enum
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from reput import config
from reput.errors import InvalidOption

DEFAULT_FILE = "/etc/rocketmq/tls.properties"

_CLIENT_AUTH = {
    "": ssl.CERT_NONE,
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TLS_1_3_CIPHERS = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
_INVALID_NOW = {9: "not valid yet", 10: "expired"}
"""Code of OpenSSL -> why a certificate cannot be used at this time."""


class TlsMode(enum.StrEnum):
    """The kinds of connections that a server accepts."""

    DISABLED = "disabled"
    """Plain connections."""
    PERMISSIVE = "permissive"
    """Plain connections and TLS, distinguished by the first byte."""
    ENFORCING = "enforcing"
    """Connections with TLS."""


def _key(field_name: str) -> str:
    """Return RocketMQ's key of a field: ``tls.server.keyPath`` is ``tls_server_key_path``."""
    words = field_name.split("_")
    if words[1] in ("server", "client"):
        name = config.key_of("_".join(words[2:]))
        return f"tls.{words[1]}.{_DOTTED.get(name, name)}"
    return _DOTTED.get(field_name, ".".join(words))


_DOTTED = {"needClientAuth": "need.client.auth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Modes, and paths of PEM files."""

    tls_config_file: str = DEFAULT_FILE
    """File with further keys of this table; it need not exist at the default path."""
    tls_server_mode: TlsMode = TlsMode.PERMISSIVE
    """Connections that the server accepts: ``disabled``: plain, ``enforcing``: with TLS,
    ``permissive``: both, on the same port."""
    tls_enable: bool | None = None
    """Use TLS for requests to name servers and masters; also ``useTLS``. By default as
    ``tls.server.mode=enforcing``."""
    tls_test_mode_enable: bool | None = None
    """Make a certificate at the start, and trust any: by default as long as no other key with
    ``server`` or ``client`` is set, respectively."""
    tls_server_key_path: str = ""
    """Private key of the server."""
    tls_server_key_password: str = field(default="", repr=False)
    """Password of that key, if it is encrypted."""
    tls_server_cert_path: str = ""
    """Certificate of the server, followed by those of intermediate authorities."""
    tls_server_need_client_auth: str = ""
    """Certificates of clients: ``none``, ``optional`` or ``require``."""
    tls_server_auth_client: bool = False
    """Verify them; required if they are wanted."""
    tls_server_trust_cert_path: str = ""
    """Certificates of the authorities that may issue them."""
    tls_client_key_path: str = ""
    """Private key for requests to other servers."""
    tls_client_key_password: str = field(default="", repr=False)
    """Password of that key, if it is encrypted."""
    tls_client_cert_path: str = ""
    """Certificate for these requests."""
    tls_client_auth_server: bool | None = None
    """Verify other servers; by default if ``tls.client.trustCertPath`` is set."""
    tls_client_trust_cert_path: str = ""
    """Certificates of the authorities that may issue those of other servers."""
    tls_ciphers: str = ""
    """Allowed ciphers, separated by commas: ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    tls_protocols: str = ""
    """Allowed versions, separated by commas: ``TLSv1.2``, ``TLSv1.3``."""

    keys: ClassVar[config.Keys]

    def __post_init__(self) -> None:
        wanted = self.tls_server_need_client_auth
        if wanted.lower() not in _CLIENT_AUTH:
            allowed = "none, optional or require"
            raise InvalidOption("tls.server.need.client.auth", wanted, allowed)

    @property
    def is_used_for_requests(self) -> bool:
        """True if requests to other servers use TLS."""
        if self.tls_enable is None:
            return self.tls_server_mode is TlsMode.ENFORCING
        return self.tls_enable

    @property
    def is_server_in_test_mode(self) -> bool:
        """True if a certificate is made at the start."""
        return self._is_in_test_mode("server")

    @property
    def is_client_in_test_mode(self) -> bool:
        """True if the certificates of other servers are not verified, and none is sent."""
        return self._is_in_test_mode("client")

    def _is_in_test_mode(self, side: str) -> bool:
        """Raises ``InvalidOption`` if keys of the side are set that the mode would ignore."""
        given = [key for key in self.pairs(set_only=True) if key.startswith(f"tls.{side}.")]
        given = [key for key in given if key != "tls.server.mode"]
        if self.tls_test_mode_enable and given:
            allowed = f"false, as {', '.join(given)} {'is' if len(given) == 1 else 'are'} set"
            raise InvalidOption("tls.test.mode.enable", "true", allowed)
        return not given if self.tls_test_mode_enable is None else self.tls_test_mode_enable

    @property
    def server_paths(self) -> tuple[str, ...]:
        """Paths of the server's files."""
        paths = (
            self.tls_server_key_path,
            self.tls_server_cert_path,
            self.tls_server_trust_cert_path,
        )
        return tuple(path for path in paths if path)

    def pairs(self, *, set_only: bool = False) -> dict[str, str]:
        """Return the settings by RocketMQ's key, in the form of a file.

        Args:
            set_only: Leave out those with the default value.
        """
        default = TlsSettings()
        texts = config.texts(self)
        names = [entry.name for entry in dataclasses.fields(self)]
        return {
            _key(name): texts[config.key_of(name)] or ""
            for name in names
            if not set_only or getattr(self, name) != getattr(default, name)
        }


TlsSettings.keys = config.Keys(
    renamed={
        "useTLS": "tlsEnable",
        **{
            _key(entry.name): config.key_of(entry.name) for entry in dataclasses.fields(TlsSettings)
        },
    }
)


# --- loading ------------------------------------------------------------------------------------


def load(settings: config.Settings) -> TlsSettings:
    """Return the settings of TLS from those of a server, and from the file that they name.

    Raises:
        InvalidOption: A value is not allowed, the file cannot be read, has an unknown key, or
            contradicts the other settings.
    """
    given = settings.make(TlsSettings)
    for unknown in settings.unknown():
        if unknown.key.startswith("tls."):
            raise _unknown(unknown)
    path = given.tls_config_file
    if path == DEFAULT_FILE and not Path(path).exists():
        return given
    in_file = config.Settings(path)
    try:
        others = in_file.make(TlsSettings)
    except InvalidOption as error:
        raise InvalidOption(f"{error.name} in {path}", error.value, error.allowed) from None
    for unknown in in_file.unknown():
        raise _unknown(unknown)
    default, changes = TlsSettings(), {}
    for entry in dataclasses.fields(TlsSettings):
        before, new = getattr(given, entry.name), getattr(others, entry.name)
        if new == getattr(default, entry.name) or new == before:
            continue
        if before != getattr(default, entry.name):
            key = _key(entry.name)
            shown = "(not shown)" if "password" in entry.name else before
            raise InvalidOption(key, shown, f"the value in {path}, which is another, or none")
        changes[entry.name] = new
    return dataclasses.replace(given, **changes)


def _unknown(unknown: config.Unknown) -> InvalidOption:
    known = ", ".join(sorted(key for key in TlsSettings.keys.renamed if key.startswith("tls.")))
    hint = f"{unknown.suggestion}?" if unknown.suggestion else f"one of {known}"
    return InvalidOption(f"{unknown.key} in {unknown.origin}", "", f"a key that exists: {hint}")


# --- contexts -----------------------------------------------------------------------------------


def empty_server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a server without a certificate. Raises as ``server_context``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context, settings)
    # RocketMQ's clients resume no sessions. A client that sends one-way requests and closes at once
    # has not read the tickets: its system then resets the connection, and requests are lost.
    context.num_tickets = 0
    # gRPC clients require it. Clients without ALPN, or with other protocols, get no answer to it.
    context.set_alpn_protocols(["h2"])
    return context


def server_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """Return the context of a server; None if it needs none, or a certificate for tests.

    Raises:
        InvalidOption: A file is missing, not readable, or not what it should be; the certificate
            has expired, or its key is another one; keys are missing or contradict each other.
    """
    context = empty_server_context(settings)
    if settings.tls_server_mode is TlsMode.DISABLED or settings.is_server_in_test_mode:
        return None
    wanted = _CLIENT_AUTH[settings.tls_server_need_client_auth.lower()]
    trust_path = settings.tls_server_trust_cert_path
    if wanted is not ssl.CERT_NONE and not settings.tls_server_auth_client:
        allowed = (
            f"true, as tls.server.need.client.auth is {settings.tls_server_need_client_auth}: "
            "certificates are never accepted unseen"
        )
        raise InvalidOption("tls.server.authClient", "false", allowed)
    if not settings.tls_server_cert_path or not settings.tls_server_key_path:
        is_key = bool(settings.tls_server_cert_path)
        key = "tls.server.keyPath" if is_key else "tls.server.certPath"
        what = "private key" if is_key else "certificate"
        allowed = f"a PEM file with the {what} of the server, or tls.server.mode=disabled"
        raise InvalidOption(key, "", allowed)
    _load_own(context, settings, "server")
    if wanted is not ssl.CERT_NONE:
        _load_trusted(context, "tls.server.trustCertPath", trust_path)
        context.verify_mode = wanted
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of requests to other servers. Raises as ``server_context``.

    Names of hosts are not verified, as in RocketMQ: certificates are issued for a cluster.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _restrict(context, settings)
    if settings.is_client_in_test_mode:
        return context
    key_path, certificate_path = settings.tls_client_key_path, settings.tls_client_cert_path
    if bool(key_path) != bool(certificate_path):
        key = "tls.client.certPath" if key_path else "tls.client.keyPath"
        other = "tls.client.keyPath" if key_path else "tls.client.certPath"
        raise InvalidOption(key, "", f"the path of a PEM file, as {other} is set")
    if key_path:
        _load_own(context, settings, "client")
    trust_path = settings.tls_client_trust_cert_path
    is_verified = settings.tls_client_auth_server
    if is_verified or (is_verified is None and trust_path):
        _load_trusted(context, "tls.client.trustCertPath", trust_path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _restrict(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Set versions and ciphers."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    versions = _words(settings.tls_protocols)
    for version in versions:
        if version not in _VERSIONS:
            allowed = "TLSv1.2, TLSv1.3, or both, separated by a comma"
            raise InvalidOption("tls.protocols", version, allowed)
    if versions:
        context.minimum_version = min(_VERSIONS[version] for version in versions)
        context.maximum_version = max(_VERSIONS[version] for version in versions)
    names = _words(settings.tls_ciphers)
    if not names:
        return
    modern = _TLS_1_3_CIPHERS & set(names)
    if modern and modern != _TLS_1_3_CIPHERS:
        allowed = f"all ciphers of TLS 1.3 or none of them: {', '.join(sorted(_TLS_1_3_CIPHERS))}"
        raise InvalidOption("tls.ciphers", ",".join(sorted(modern)), allowed)
    others = [name for name in names if name not in modern]
    if modern and not others:
        _limit_version(context, settings, least=ssl.TLSVersion.TLSv1_3)
    if others:
        _set_ciphers(context, others)
    if not modern:
        _limit_version(context, settings, most=ssl.TLSVersion.TLSv1_2)


def _limit_version(
    context: ssl.SSLContext,
    settings: TlsSettings,
    *,
    least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
    most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> None:
    """Limit the versions to those with a cipher."""
    versions = _words(settings.tls_protocols) or list(_VERSIONS)
    left = [_VERSIONS[name] for name in versions if least <= _VERSIONS[name] <= most]
    if not left:
        allowed = f"a list with ciphers of {settings.tls_protocols}"
        raise InvalidOption("tls.ciphers", settings.tls_ciphers, allowed)
    context.minimum_version, context.maximum_version = min(left), max(left)


def _set_ciphers(context: ssl.SSLContext, names: list[str]) -> None:
    """Allow ciphers of TLS 1.2, given by their registered names."""
    every = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    known = {cipher["name"] for cipher in every.get_ciphers()}
    for name in names:
        if _openssl_name(name) not in known:
            allowed = ", ".join(sorted({*_TLS_1_3_CIPHERS, *map(_registered_name, known)}))
            raise InvalidOption("tls.ciphers", name, f"names of {allowed}")
    context.set_ciphers(":".join(map(_openssl_name, names)))


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a cipher: ``ECDHE-RSA-AES128-GCM-SHA256``."""
    text = name.removeprefix("TLS_").replace("_WITH_", "_").replace("_CBC_", "_")
    text = text.replace("AES_128", "AES128").replace("AES_256", "AES256")
    return text.replace("POLY1305_SHA256", "POLY1305").replace("_", "-")


def _registered_name(name: str) -> str:
    """Return the registered name of one of OpenSSL's default ciphers."""
    if name.startswith("TLS_"):
        return name
    words = name.replace("AES128", "AES_128").replace("AES256", "AES_256").split("-")
    exchange, cipher = words[:2], words[2:]
    if len(cipher) == 2 and cipher[0].startswith("AES"):
        cipher.insert(1, "CBC")
    if cipher[-1] == "POLY1305":
        cipher.append("SHA256")
    return f"TLS_{'_'.join(exchange)}_WITH_{'_'.join(cipher)}"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _load_own(context: ssl.SSLContext, settings: TlsSettings, side: str) -> None:
    """Load certificate and key of a server or client, and check that they can be used now."""
    certificate_path = getattr(settings, f"tls_{side}_cert_path")
    key_path = getattr(settings, f"tls_{side}_key_path")
    password = getattr(settings, f"tls_{side}_key_password")
    certificate_key, key_key = f"tls.{side}.certPath", f"tls.{side}.keyPath"
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(certificate_key, certificate_path, "certificates", trusting.load_verify_locations)

    def load_pair(path: str) -> None:
        # With a function OpenSSL never asks for the password on the terminal.
        context.load_cert_chain(certificate_path, path, password=lambda: password)

    what = f"the private key of the certificate in {certificate_path}"
    if password:
        what += f", encrypted with tls.{side}.keyPassword"
    _load(key_key, key_path, what, load_pair)
    problem = _time_problem(certificate_path, key_path, password, trusting)
    if problem:
        allowed = f"a file with a certificate that is valid now; this one is {problem}"
        raise InvalidOption(certificate_key, certificate_path, allowed)


def _load_trusted(context: ssl.SSLContext, key: str, path: str) -> None:
    """Load the certificates of authorities."""
    if not path:
        raise InvalidOption(key, "", "a PEM file with certificates of authorities")
    _load(key, path, "certificates of authorities", context.load_verify_locations)


def _load(key: str, path: str, what: str, loading: Callable[[str], object]) -> None:
    """Load a file, or raise ``InvalidOption`` with its key."""
    try:
        with Path(path).open("rb"):  # OpenSSL's errors have no reason
            pass
        loading(path)
    except ssl.SSLError as error:
        raise InvalidOption(key, path, f"a PEM file with {what} ({reason_of(error)})") from None
    except OSError as error:
        allowed = f"a readable PEM file with {what} ({error.strerror})"
        raise InvalidOption(key, path, allowed) from None


def _time_problem(
    certificate_path: str, key_path: str, password: str, trusting: ssl.SSLContext
) -> str:
    """Return why a certificate is not valid at this time; empty if it is.

    A handshake in memory shows it: Python has no other way to read a certificate.
    """
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate_path, key_path, password=lambda: password)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        trusting.wrap_bio(to_client, to_server),
        serving.wrap_bio(to_server, to_client, server_side=True),
    )
    for side in (*sides, *sides):
        try:
            side.do_handshake()
        except ssl.SSLCertVerificationError as error:
            return _INVALID_NOW.get(error.verify_code, "")
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return ""
    return ""


def reason_of(error: Exception) -> str:
    """Return OpenSSL's reason in words, without the place in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error) or type(error).__name__
