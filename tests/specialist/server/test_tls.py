"""A replica serves only callers whose certificate its CA has signed."""

import shutil
import subprocess
from pathlib import Path

import grpc
import pytest

from octet.client.replica import SpecialistClient
from octet.rpc.certificates import Tls
from tests.specialist.server.background import in_background
from tests.specialist.server.harness import ask, generate_request, running_replica
from tests.specialist.server.test_commands import octet

OPENSSL = shutil.which("openssl")


def openssl(directory: Path, *arguments: str) -> None:
    if OPENSSL is None:
        pytest.skip("openssl is not installed, so no certificates can be made")
    subprocess.run([OPENSSL, *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificate of a CA, and with the keys and CA-signed certificates of a replica and a
    caller."""
    directory = tmp_path_factory.mktemp("pki")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(directory, *new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("replica", "caller"):
        openssl(
            directory,
            *new,
            *("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )
    return directory


def tls(pki: Path) -> Tls:
    return Tls(pki / "replica.pem", pki / "replica.key", client_ca=pki / "ca.pem")


async def test_only_a_caller_with_a_certificate_is_served(pki: Path) -> None:
    async with running_replica(tls=tls(pki)) as served:
        pair = pki / "caller.pem", pki / "caller.key"
        async with SpecialistClient(served.address, ca=pki / "ca.pem", certificate=pair[0], key=pair[1]) as known:
            assert (await ask(known, generate_request())).error is None
        async with SpecialistClient(served.address, ca=pki / "ca.pem") as unknown:
            received = await ask(unknown, generate_request(), timeout=5)
            assert received.accepted is None and received.error is not None
            assert received.error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_command_sends_its_certificate(pki: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_background(tls=tls(pki)) as background:
        names = {"--tls-ca": "ca.pem", "--tls-certificate": "caller.pem", "--tls-key": "caller.key"}
        files = [part for option, name in names.items() for part in (option, str(pki / name))]
        address = background.served.address
        assert octet("generate", "hello", "--replica", address, *files, "--max-tokens", "4", "--ignore-eos") == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("certificate", "key"), [(None, Path("k")), (Path("c"), None)])
def test_certificate_or_key_alone_is_refused(certificate: Path | None, key: Path | None) -> None:
    with pytest.raises(ValueError, match="must be given together"):
        SpecialistClient(ca=Path("ca"), certificate=certificate, key=key)


def test_a_certificate_without_a_ca_is_refused() -> None:
    with pytest.raises(ValueError, match="requires the server's CA"):
        SpecialistClient(certificate=Path("c"), key=Path("k"))
