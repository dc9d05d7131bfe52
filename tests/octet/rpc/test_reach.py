"""Who is served beyond this machine, by whoever asks for no keys."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.bind import Tls, check_signed
from octet.rpc.bind_refused import BindRefused
from specialist.service.settings import ServiceSettings

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
def test_beyond_this_machine_only_who_shows_a_certificate(
    host: str, socket: Path | None, tls: Tls | None, insecure: bool
) -> None:
    settings = ServiceSettings(host=host, socket=socket, tls=tls, insecure=insecure)
    if host in NEAR or socket is not None or tls is SIGNED or insecure:
        check_signed(settings)
        return
    with pytest.raises(BindRefused, match="--tls-client-ca"):
        check_signed(settings)
