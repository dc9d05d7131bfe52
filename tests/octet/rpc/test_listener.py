"""Without API keys, a public listen address needs client certificates or `insecure`."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.certificates import Tls
from octet.rpc.listener import BindRefused, check_client_ca_configured
from specialist.server.settings import ServiceSettings

FAR = ("0.0.0.0", "::", "10.0.0.5", "replica.example")  # noqa: S104
NEAR = ("127.0.0.1", "127.9.9.9", "::1", "localhost")
ONE_SIDED = Tls(Path("c"), Path("k"))
SIGNED = Tls(Path("c"), Path("k"), Path("ca"))


@given(
    st.sampled_from(FAR + NEAR),
    st.sampled_from([None, Path("s")]),
    st.sampled_from([None, ONE_SIDED, SIGNED]),
    st.booleans(),
)
def test_public_address_needs_client_certificates(
    host: str, socket: Path | None, tls: Tls | None, insecure: bool
) -> None:
    settings = ServiceSettings(host=host, socket=socket, tls=tls, insecure=insecure)
    if host in NEAR or socket is not None or tls is SIGNED or insecure:
        check_client_ca_configured(settings)
        return
    with pytest.raises(BindRefused, match="--tls-client-ca"):
        check_client_ca_configured(settings)
