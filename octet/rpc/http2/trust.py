"""Whom a client believes, and what it shows of itself."""

import ssl
from pathlib import Path


def trusting(ca: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Servers whose certificate `ca` has signed, by name. Raises OSError for a file that cannot be read or used."""
    for path in (ca, certificate, key):  # OpenSSL does not name what it cannot read
        if path is not None:
            path.read_bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # `ca` may be one that another has signed, as with gRPC's own
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise OSError(f"{ca} holds no certificates: {error}") from None
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            raise OSError(f"{certificate} and {key} are no certificate and its key: {error}") from None
    return context


def _no_password() -> str:
    """Nobody is there to be asked for one."""
    raise OSError("a key that is locked with a password cannot be used")
