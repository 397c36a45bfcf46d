"""The certificate of a server in test mode, as a client gets it."""

import ipaddress
import ssl

import pytest

from reput.remoting import throwaway_certificate

x509 = pytest.importorskip("cryptography.x509")

NOW_MS = 1_700_000_000_000


def certificate_of(server_context: ssl.SSLContext) -> bytes:
    """Return the certificate that a client without any check gets, as DER."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    done = set[ssl.SSLObject]()
    while len(done) < 2:
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            done.add(side)
    der = client.getpeercert(binary_form=True)
    assert der is not None
    return der


def test_it_has_the_names_of_this_machine_and_ten_years() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    throwaway_certificate.load_into(context, NOW_MS)
    certificate = x509.load_der_x509_certificate(certificate_of(context))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    addresses = [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    days = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days
    assert days == 3651
