"""A renewed certificate is used for new connections. An unusable one is ignored."""

import asyncio
import logging
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import uvloop

from octet import AsyncClient, Unavailable
from octet.rpc.certificates import CertificateWatcher, Tls
from router.api.keys.key_file import StaticKeys
from router.server import RouterServer
from router.settings import HttpSettings, RouterSettings
from tests.patience import PATIENCE
from tests.router.keys.keyed import issue_key, key_set
from tests.router.serving.harness import NoOpinions, ensemble_of
from tests.specialist.server.harness import running_replica, sim
from tests.specialist.server.test_tls import openssl

ANN = issue_key("ann", "operate")


@pytest.fixture
def files(pki: Path, tmp_path: Path) -> Tls:
    """Return a copy of the router's certificate and key, which the tests replace."""
    for name in ("replica.pem", "replica.key", "ca.pem"):
        shutil.copy(pki / name, tmp_path / name)
    return Tls(tmp_path / "replica.pem", tmp_path / "replica.key")


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificate of another CA, and a router certificate that this CA has signed."""
    folder = tmp_path_factory.mktemp("another")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(folder, *new, "-subj", "/CN=another ca", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(
        folder,
        *new,
        *("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-subj", "/CN=router", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "own.key", "-out", "own.pem"),
    )
    return folder


@asynccontextmanager
async def routed(tls: Tls) -> AsyncIterator[RouterServer]:
    async with running_replica(sim()) as served:
        settings = RouterSettings(
            replicas={"writer": (served.address,)}, tls=tls, http=HttpSettings(tls=tls), keys=StaticKeys(key_set(ANN))
        )
        server = RouterServer(ensemble_of("writer"), settings, NoOpinions())
        await server.start()
        try:
            async with asyncio.timeout(PATIENCE):
                await server.warm()
            yield server
        finally:
            await server.stop(0)


async def trusted(server: RouterServer, ca: Path, certificate: Path | None = None) -> tuple[bool, bool]:
    """Return whether gRPC and HTTP each serve a caller that trusts `ca` and presents `certificate`."""
    key = None if certificate is None else certificate.with_suffix(".key")
    address = f"127.0.0.1:{server.port}"
    async with AsyncClient(
        address, ca=ca, certificate=certificate, key=key, api_key=ANN.token, max_retries=0
    ) as client:
        try:
            await client.infer("x", force="writer", max_tokens=2, timeout=PATIENCE)
            by_grpc = True
        except Unavailable:
            by_grpc = False
    return by_grpc, await _by_http(server, ca, certificate)


async def _by_http(server: RouterServer, ca: Path, certificate: Path | None) -> bool:
    assert server.http is not None
    trust = ssl.create_default_context(cafile=str(ca))
    if certificate is not None:
        trust.load_cert_chain(certificate, certificate.with_suffix(".key"))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http.port, ssl=trust)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: octet\r\nconnection: close\r\n\r\n")
        output = await reader.read()
        writer.close()
    except (ssl.SSLError, ConnectionError):
        return False
    return b'{"status":"ok"}' in output


def test_grpc_and_http_use_a_renewed_certificate_without_a_restart(
    files: Tls, pki: Path, another: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with routed(files) as server:
            assert await trusted(server, pki / "ca.pem") == (True, True)
            assert await trusted(server, another / "ca.pem") == (False, False)
            channel = grpc.aio.secure_channel(
                f"127.0.0.1:{server.port}", grpc.ssl_channel_credentials((pki / "ca.pem").read_bytes())
            )
            await channel.channel_ready()
            shutil.copy(another / "own.pem", files.certificate)
            assert await trusted(server, pki / "ca.pem") == (True, True), (
                "a certificate without its key must change nothing"
            )
            assert caplog.text.count("keeping the old certificate") == 2
            shutil.copy(another / "own.key", files.key)
            assert await trusted(server, another / "ca.pem") == (True, True)
            assert await trusted(server, pki / "ca.pem") == (False, False)
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await check(b"", timeout=PATIENCE), "open connections must stay open"
            await channel.close()
            files.key.unlink()
            assert await trusted(server, another / "ca.pem") == (True, True)

    with caplog.at_level(logging.INFO):
        uvloop.run(scenario())
    assert "PRIVATE KEY" not in caplog.text


def test_a_renewed_client_ca_is_used_without_a_restart(files: Tls, pki: Path, another: Path) -> None:
    async def scenario() -> None:
        tls = replace(files, client_ca=files.certificate.with_name("ca.pem"))
        async with routed(tls) as server:
            ca = pki / "ca.pem"
            assert await trusted(server, ca, pki / "caller.pem") == (True, True)
            assert await trusted(server, ca, another / "own.pem") == (False, False)
            assert await trusted(server, ca) == (False, False)
            assert tls.client_ca is not None
            shutil.copy(another / "ca.pem", tls.client_ca)
            assert await trusted(server, ca, another / "own.pem") == (True, True)
            assert await trusted(server, ca, pki / "caller.pem") == (False, False)

    uvloop.run(scenario())


def test_unusable_certificate_at_the_start_is_named(files: Tls, another: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"absent\.pem"):
        CertificateWatcher(replace(files, certificate=tmp_path / "absent.pem"))
    shutil.copy(another / "own.key", files.key)
    with pytest.raises(OSError, match="the TLS files cannot be used"):
        CertificateWatcher(files)
    openssl(tmp_path, "ec", "-in", "replica.key", "-out", "locked.key", "-aes128", "-passout", "pass:secret")
    with pytest.raises(OSError, match="password"):
        CertificateWatcher(replace(files, key=tmp_path / "locked.key"))


def test_certificates_that_change_while_read_are_not_used(
    files: Tls, another: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate is used only together with its own key."""
    followed = CertificateWatcher(files)
    load = ssl.SSLContext.load_cert_chain

    def loading(context: ssl.SSLContext, *arguments: object, **options: object) -> None:
        load(context, *arguments, **options)  # type: ignore[arg-type]
        shutil.copy(another / "own.pem", files.certificate)

    files.key.touch()
    with monkeypatch.context() as patched:
        patched.setattr(ssl.SSLContext, "load_cert_chain", loading)
        assert followed.reload() is None
    assert "changed while being read" in caplog.text
    shutil.copy(another / "own.key", files.key)
    renewed = followed.reload()
    assert renewed is not None
    assert (renewed.certificate, renewed.key) == (
        (another / "own.pem").read_bytes(),
        (another / "own.key").read_bytes(),
    )
    assert "PRIVATE KEY" not in repr(renewed)
