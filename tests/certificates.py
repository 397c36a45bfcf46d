"""Authorities and certificates for tests of TLS, as PEM files."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """An authority that signs itself."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder(
                self._name, self._name, self._key.public_key(), x509.random_serial_number()
            )
            .not_valid_before(NOW - DAY)
            .not_valid_after(NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = str(folder / f"{name}.pem")
        Path(self.path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        begin: datetime.datetime = NOW - DAY,
        end: datetime.datetime = NOW + DAY,
        password: str = "",
        is_rsa: bool = False,
    ) -> Pair:
        """Write a certificate and its key, in PKCS#8 as Java requires; replaces files."""
        key = (
            rsa.generate_private_key(65537, 2048)
            if is_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = (
            x509.CertificateBuilder(
                self._name, subject, key.public_key(), x509.random_serial_number()
            )
            .not_valid_before(begin)
            .not_valid_after(end)
            .sign(self._key, hashes.SHA256())
        )
        protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            protection = serialization.BestAvailableEncryption(password.encode())
        pair = Pair(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        Path(pair.certificate).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        Path(pair.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
            )
        )
        return pair
