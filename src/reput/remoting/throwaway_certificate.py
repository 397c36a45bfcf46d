"""Makes the certificate of a server in test mode: by no authority, and forgotten at its end."""

import datetime
import importlib.util
import ipaddress
import ssl
import tempfile
from pathlib import Path

from reput.errors import TlsFailed
from reput.extras import install_command

_NAME = "reput test certificate"
_HOSTS = ("localhost",)
_ADDRESSES = ("127.0.0.1", "::1")
"""Clients that check the name, and nothing else, accept it on this machine."""
_VALID = datetime.timedelta(days=3650)


def is_possible() -> bool:
    """Return whether a certificate can be made: the package ``cryptography`` is installed."""
    return importlib.util.find_spec("cryptography") is not None


def load_into(context: ssl.SSLContext, now_ms: int) -> None:
    """Make a certificate for a context. Takes 0.3 s the first time, for the import.

    Args:
        context: The context of a server.
        now_ms: The time, in milliseconds since the epoch.

    Raises:
        TlsFailed: The package ``cryptography`` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise TlsFailed(
            "there is no certificate: set tls.server.keyPath and tls.server.certPath, or install "
            f"the package cryptography, which makes one for tests: {install_command('tls')}"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    hosts = x509.SubjectAlternativeName(
        [
            *map(x509.DNSName, _HOSTS),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES),
        ]
    )
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(hosts, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with tempfile.TemporaryDirectory(prefix="reput-tls-") as folder:  # readable by its owner alone
        path = Path(folder) / "both.pem"
        path.write_bytes(pem)
        context.load_cert_chain(path)
