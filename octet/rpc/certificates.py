"""TLS certificates that are reloaded when their files change."""

import argparse
import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import grpc

from octet.config.ensemble import TlsConfig
from octet.identity import file_stamp

_log = logging.getLogger(__name__)
_Stamp: TypeAlias = tuple[tuple[int, ...] | None, ...]


def add_tls_options(group: Any, client_ca_help: str) -> None:
    for name, about in (("certificate", None), ("key", None), ("client-ca", client_ca_help)):
        group.add_argument(f"--tls-{name}", type=Path, metavar="FILE", help=about)


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Path
    key: Path
    client_ca: Path | None = None  # if set, only callers with a certificate signed by this CA are served

    @classmethod
    def from_config(cls, files: TlsConfig | None) -> "Tls | None":
        if files is None:
            return None
        return cls(Path(files.certificate), Path(files.key), Path(files.client_ca) if files.client_ca else None)

    @classmethod
    def from_options(cls, arguments: argparse.Namespace) -> "Tls | None":
        """Return None if no option is given. Raises ValueError if certificate or key is missing."""
        files = arguments.tls_certificate, arguments.tls_key, arguments.tls_client_ca
        if files == (None, None, None):
            return None
        if None in files[:2]:
            raise ValueError("--tls-certificate and --tls-key must be given together")
        return cls(*files)

    def load(self) -> "LoadedCertificate":
        """Read and check the files. Raises OSError if they are unreadable, do not match, or change while being read."""
        contents = self._read()  # OpenSSL does not name the file that it cannot read
        context = self._make_context()
        if self._read() != contents:
            raise OSError(f"one of the TLS files changed while being read: {', '.join(map(str, self._files()))}")
        certificate, key, *client_ca = contents
        return LoadedCertificate(context, certificate, key, client_ca[0] if client_ca else None)

    def stamp(self) -> _Stamp:
        return tuple(map(file_stamp, self._files()))

    def _files(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]

    def _read(self) -> list[bytes]:
        return [path.read_bytes() for path in self._files()]

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            raise OSError(f"the TLS files cannot be used: {', '.join(map(str, self._files()))}: {error}") from None
        return context


@dataclass(frozen=True, slots=True)
class LoadedCertificate:
    """The contents of the TLS files, read together and checked."""

    context: ssl.SSLContext
    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None

    def for_grpc(self) -> Any:
        pair = (self.key, self.certificate)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=self.client_ca)


class CertificateWatcher:
    """Looks for changed TLS files at every new connection. Unusable files are logged once and otherwise ignored."""

    def __init__(self, tls: Tls) -> None:
        """Raises OSError for files that cannot be used."""
        self._tls = tls
        self._seen = tls.stamp()
        self._lock = Lock()
        self.first = tls.load()

    def reload(self) -> LoadedCertificate | None:
        """Return the new certificate if the files have changed since the last check and are usable, else None."""
        with self._lock:
            stamp = self._tls.stamp()
            if stamp == self._seen:
                return None
            self._seen = stamp
        try:
            loaded = self._tls.load()
        except OSError as error:
            _log.error("keeping the old certificate: %s", error)
            return None
        _log.info("reloaded the certificate %s", self._tls.certificate)
        return loaded


class ReloadingSslContext(ssl.SSLContext):
    """An SSL context that uses the newest certificate for every new connection."""

    _watcher: CertificateWatcher
    _current: ssl.SSLContext

    @classmethod
    def watch(cls, tls: Tls) -> "ReloadingSslContext":
        """Create the context. Raises OSError for files that cannot be used."""
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made._watcher = CertificateWatcher(tls)
        made._current = made._watcher.first.context
        return made

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        loaded = self._watcher.reload()
        self._current = self._current if loaded is None else loaded.context
        return self._current.wrap_bio(*arguments, **options)


def server_credentials(tls: Tls) -> Any:
    """Create gRPC credentials that are reloaded when the files change. Raises OSError for files that cannot be used."""
    watcher = CertificateWatcher(tls)

    def reload() -> Any | None:
        loaded = watcher.reload()
        return None if loaded is None else loaded.for_grpc()

    return grpc.dynamic_ssl_server_credentials(watcher.first.for_grpc(), reload, tls.client_ca is not None)


def _refuse_password() -> str:
    raise OSError("the TLS key must not be protected by a password")
