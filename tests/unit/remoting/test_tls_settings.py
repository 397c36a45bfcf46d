"""Keys of TLS: their sources and refusals, and the contexts that are made from them."""

import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest

from certificates import DAY, NOW, Authority, Pair
from reput import config
from reput.errors import InvalidOption
from reput.remoting import tls_settings
from reput.remoting.tls_settings import TlsMode, TlsSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("broker")


def load(**given: str) -> TlsSettings:
    pairs = {key.replace("__", "."): value for key, value in given.items()}
    return tls_settings.load(config.Settings(pairs))


def server(pair: Pair, **more: Any) -> TlsSettings:
    given = {"tls_server_cert_path": pair.certificate, "tls_server_key_path": pair.key}
    return TlsSettings(**{**given, **more})


def test_the_defaults_are_those_of_rocketmq() -> None:
    settings = load()
    assert settings.tls_server_mode is TlsMode.PERMISSIVE
    assert settings.is_server_in_test_mode
    assert settings.is_client_in_test_mode
    assert not settings.is_used_for_requests


# Source: rocketmq 4.9.7 TlsSystemConfig: the names of its constants' values.
NAMES = [
    "tls.server.mode",
    "tls.enable",
    "tls.config.file",
    "tls.test.mode.enable",
    "tls.server.need.client.auth",
    "tls.server.keyPath",
    "tls.server.keyPassword",
    "tls.server.certPath",
    "tls.server.authClient",
    "tls.server.trustCertPath",
    "tls.client.keyPath",
    "tls.client.keyPassword",
    "tls.client.certPath",
    "tls.client.authServer",
    "tls.client.trustCertPath",
]


def test_every_key_of_rocketmq_is_known() -> None:
    assert set(NAMES) <= set(TlsSettings().pairs())
    assert set(NAMES) <= set(TlsSettings.keys.renamed)


def test_keys_of_a_file_and_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text("tls.server.mode=enforcing\ntls.server.keyPath=/k\ntls.server.certPath=/c\n")
    settings = load(tls__config__file=str(path), tls__server__keyPath="/k", useTLS="false")
    assert settings.tls_server_mode is TlsMode.ENFORCING
    assert settings.server_paths == ("/k", "/c")
    assert not settings.is_used_for_requests


def test_an_enforcing_server_uses_tls_for_its_own_requests() -> None:
    assert load(tls__server__mode="enforcing").is_used_for_requests
    assert not load(tls__server__mode="enforcing", tls__enable="false").is_used_for_requests


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tls.server.mode=strict", ("tls.server.mode in ", "disabled, permissive, enforcing")),
        ("tls.server.keypath=/x", ("tls.server.keypath", "tls.server.keyPath?")),
        ("tls.server.keyPath=/other", ("tls.server.keyPath", "another, or none")),
        ("tls.server.keyPassword=two", ("keyPassword", "(not shown)")),
    ],
)
def test_refusals_of_a_file(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(text)
    given = {"tls__server__keyPath": "/k", "tls__server__keyPassword": "one"}
    with pytest.raises(InvalidOption) as refused:
        load(tls__config__file=str(path), **given)
    for part in (*parts, str(path)):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("tls.server.mod", "enforcing", "tls.server.mode?"),
        ("tls.config.file", "/nowhere/tls.properties", "a readable file"),
        ("tls.server.need.client.auth", "always", "none, optional or require"),
    ],
)
def test_refusals_of_keys(key: str, value: str, part: str) -> None:
    with pytest.raises(InvalidOption, match=part.replace("?", "[?]")):
        tls_settings.load(config.Settings({key: value}))


def test_a_key_next_to_the_test_mode_is_refused_instead_of_ignored(pair: Pair) -> None:
    with pytest.raises(InvalidOption, match=r"false, as tls\.server\.keyPath, tls\.server\.certP"):
        tls_settings.server_context(server(pair, tls_test_mode_enable=True))


def test_passwords_are_not_shown() -> None:
    settings = TlsSettings(tls_server_key_password="hidden", tls_client_key_password="hidden")
    assert "hidden" not in repr(settings)


# --- contexts -----------------------------------------------------------------------------------


def shake(serving: ssl.SSLContext, asking: ssl.SSLContext) -> ssl.SSLObject:
    """Return the client's side of a handshake in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(down, up)
    taken = serving.wrap_bio(up, down, server_side=True)
    for side in (client, taken, client, taken, client, taken):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return client


def context_of(settings: TlsSettings) -> ssl.SSLContext:
    context = tls_settings.server_context(settings)
    assert context is not None
    return context


def test_a_client_verifies_by_its_authority(pair: Pair, authority: Authority, folder: Path) -> None:
    serving = context_of(server(pair))
    trusting = TlsSettings(tls_client_trust_cert_path=authority.path)
    client = shake(serving, tls_settings.client_context(trusting))
    assert client.version() == "TLSv1.3"
    assert shake(serving, tls_settings.client_context(TlsSettings())).version() == "TLSv1.3"
    other = Authority(folder / "other").path
    strange = TlsSettings(tls_client_trust_cert_path=other)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(serving, tls_settings.client_context(strange))
    blind = TlsSettings(tls_client_trust_cert_path=other, tls_client_auth_server=False)
    assert shake(serving, tls_settings.client_context(blind)).version()


def test_an_encrypted_key_needs_its_password(authority: Authority) -> None:
    pair = authority.issue("encrypted", password="word")
    assert context_of(server(pair, tls_server_key_password="word"))
    for wrong in ("", "other"):
        with pytest.raises(InvalidOption, match=r"tls\.server\.keyPath") as refused:
            tls_settings.server_context(server(pair, tls_server_key_password=wrong))
        assert "other" not in str(refused.value)


def test_a_client_certificate_is_required(pair: Pair, authority: Authority, folder: Path) -> None:
    trust = {"tls_server_auth_client": True, "tls_server_trust_cert_path": authority.path}
    serving = context_of(server(pair, tls_server_need_client_auth="REQUIRE", **trust))
    own = authority.issue("client")
    certified = TlsSettings(tls_client_key_path=own.key, tls_client_cert_path=own.certificate)
    assert shake(serving, tls_settings.client_context(certified)).version()
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake(serving, tls_settings.client_context(TlsSettings()))
    foreign = Authority(folder / "foreign").issue("client")
    strange = TlsSettings(tls_client_key_path=foreign.key, tls_client_cert_path=foreign.certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(serving, tls_settings.client_context(strange))


def test_tls_1_1_is_refused(pair: Pair) -> None:
    old = tls_settings.client_context(TlsSettings())
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL"):
        shake(context_of(server(pair)), old)


@pytest.mark.parametrize(
    ("given", "version", "cipher"),
    [
        ({"tls_protocols": "TLSv1.2"}, "TLSv1.2", None),
        ({"tls_protocols": "TLSv1.3"}, "TLSv1.3", None),
        ({"tls_protocols": "TLSv1.3, TLSv1.2"}, "TLSv1.3", None),
        # Without a cipher of TLS 1.3, as in Java, that version cannot be used.
        (
            {"tls_ciphers": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
            "TLSv1.2",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
    ],
)
def test_versions_and_ciphers(
    pair: Pair, given: dict[str, str], version: str, cipher: str | None
) -> None:
    client = shake(context_of(server(pair, **given)), tls_settings.client_context(TlsSettings()))
    assert client.version() == version
    used = client.cipher()
    assert used is not None
    assert cipher in (None, used[0])


REFUSED = {
    "no certificate": ({"tls_server_cert_path": ""}, "tls.server.certPath", "with the certificate"),
    "no key": ({"tls_server_key_path": ""}, "tls.server.keyPath", "private key"),
    "missing": ({"tls_server_key_path": "/nowhere"}, "tls.server.keyPath", "No such file"),
    "a folder": ({"tls_server_cert_path": "/"}, "tls.server.certPath", "Is a directory"),
    "no PEM": ({"tls_server_cert_path": __file__}, "tls.server.certPath", "certificates"),
    "no key in it": ({"tls_server_key_path": __file__}, "tls.server.keyPath", "private key"),
    "unseen": ({"tls_server_need_client_auth": "require"}, "tls.server.authClient", "true"),
    "nobody": (
        {"tls_server_need_client_auth": "optional", "tls_server_auth_client": True},
        "tls.server.trustCertPath",
        "certificates of authorities",
    ),
    "old version": ({"tls_protocols": "TLSv1.1"}, "tls.protocols", "TLSv1.2, TLSv1.3"),
    "unknown cipher": ({"tls_ciphers": "TLS_RSA_X"}, "tls.ciphers", "TLS_ECDHE_RSA_WITH_AES"),
    "some of 1.3": ({"tls_ciphers": "TLS_AES_128_GCM_SHA256"}, "tls.ciphers", "all ciphers"),
    "no cipher": (
        {
            "tls_ciphers": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "tls_protocols": "TLSv1.3",
        },
        "tls.ciphers",
        "ciphers of TLSv1.3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_key_and_what_is_allowed(pair: Pair, name: str) -> None:
    given, key, allowed = REFUSED[name]
    with pytest.raises(InvalidOption) as refused:
        tls_settings.server_context(server(pair, **given))
    assert refused.value.name == key
    assert allowed in refused.value.allowed


def test_a_key_of_another_certificate_is_refused(pair: Pair, authority: Authority) -> None:
    other = authority.issue("other")
    with pytest.raises(InvalidOption, match="key values mismatch") as refused:
        tls_settings.server_context(server(pair, tls_server_key_path=other.key))
    assert pair.certificate in str(refused.value)


@pytest.mark.parametrize(
    ("begin", "end", "problem"),
    [(NOW - 2 * DAY, NOW - DAY, "expired"), (NOW + DAY, NOW + 2 * DAY, "not valid yet")],
)
def test_a_certificate_must_be_valid_now(
    authority: Authority, begin: datetime.datetime, end: datetime.datetime, problem: str
) -> None:
    pair = authority.issue(problem.replace(" ", "-"), begin=begin, end=end)
    with pytest.raises(InvalidOption, match=problem) as refused:
        tls_settings.server_context(server(pair))
    assert refused.value.name == "tls.server.certPath"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"tls_client_key_path": "/k"}, "tls.client.certPath"),
        ({"tls_client_cert_path": "/c"}, "tls.client.keyPath"),
        ({"tls_client_auth_server": True}, "tls.client.trustCertPath"),
        ({"tls_client_trust_cert_path": "/nowhere"}, "tls.client.trustCertPath"),
    ],
)
def test_refusals_of_a_client(given: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        tls_settings.client_context(TlsSettings(**given))
    assert refused.value.name == key
