"""`octet serve` with API keys and TLS in its configuration."""

import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from octet import Client, Unauthenticated
from octet.cli import main
from tests.serve.ensemble import TWO, serving
from tests.serve.test_http import url_of
from tests.specialist.server.test_tls import pki

__all__ = ["pki"]
ROUTER = "router: {http: {port: 0}, keys: keys.json, tls: {certificate: replica.pem, key: replica.key}}\n"


def status(url: str, ca: Path, token: str | None) -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/models", headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=str(ca))) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_keys_and_tls_from_the_configuration(
    tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTET_API_KEY", raising=False)
    for name in ("replica.pem", "replica.key"):
        shutil.copy(pki / name, tmp_path / name)
    file = ("--file", str(tmp_path / "keys.json"))
    assert main(["keys", "new", "ann", "--role", "call", *file]) == 0
    token = capsys.readouterr().out.strip()
    with serving(tmp_path, TWO + ROUTER) as served:
        url, ca = url_of(served), pki / "ca.pem"
        assert url.startswith("https://")
        assert (status(url, ca, None), status(url, ca, token)) == (401, 200)
        with Client(served.address, ca=ca, api_key=token) as client:
            assert client.infer("ls", force="shell", max_tokens=2).receipt.caller == "ann"
        with Client(served.address, ca=ca) as client, pytest.raises(Unauthenticated):
            client.infer("ls")
        assert main(["keys", "revoke", "ann", *file]) == 0
        served.until(lambda: status(url, ca, token) == 401)
        assert token not in served.out + served.err
