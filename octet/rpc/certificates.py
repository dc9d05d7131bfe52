"""Certificates that are followed: whoever connects after the files have changed is shown the new ones."""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import grpc

_log = logging.getLogger(__name__)
_Stamp: TypeAlias = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Path
    key: Path
    client_ca: Path | None = None
    """With it, only callers whose certificate it has signed are served."""

    @classmethod
    def named(cls, certificate: str, key: str, client_ca: str | None) -> "Tls":
        return cls(Path(certificate), Path(key), None if client_ca is None else Path(client_ca))

    def context(self) -> ssl.SSLContext:
        """Raises OSError for files that cannot be read, or do not belong together."""
        for path in self.files():
            path.open("rb").close()  # OpenSSL does not name what it cannot read
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            raise OSError(f"{self.certificate} and {self.key} are no certificate and its key: {error}") from None
        return context

    def stamp(self) -> _Stamp:
        return tuple(map(_stamp, self.files()))

    def files(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]


class Followed:
    """Looks at the files whenever somebody connects. What cannot be used changes nothing, and is told once."""

    def __init__(self, tls: Tls) -> None:
        """Raises OSError."""
        self._tls = tls
        self._seen = tls.stamp()
        self._lock = Lock()
        tls.context()

    def renewed(self, read: Callable[[Tls], Any]) -> Any | None:
        """What `read` makes of the files, where they have changed since they were last looked at and can be used."""
        with self._lock:
            stamp = self._tls.stamp()
            if stamp == self._seen:
                return None
            self._seen = stamp
        try:
            self._tls.context()
            found = read(self._tls)
        except OSError as error:
            _log.error("the certificate stays as it was: %s", error)
            return None
        _log.info("the certificate has changed: %s", self._tls.certificate)
        return found


class FollowingContext(ssl.SSLContext):
    """Stands where a context does, and has the newest speak for it."""

    _followed: Followed
    _current: ssl.SSLContext

    @classmethod
    def over(cls, tls: Tls) -> "FollowingContext":
        """Raises OSError."""
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made._followed = Followed(tls)
        made._current = tls.context()
        return made

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """One connection."""
        self._current = self._followed.renewed(Tls.context) or self._current
        return self._current.wrap_bio(*arguments, **options)


def grpc_credentials(tls: Tls) -> Any:
    """A server's. Raises OSError."""
    followed = Followed(tls)
    return grpc.dynamic_ssl_server_credentials(
        _grpc_configuration(tls),
        lambda: followed.renewed(_grpc_configuration),
        require_client_authentication=tls.client_ca is not None,
    )


def _grpc_configuration(tls: Tls) -> Any:
    ca = None if tls.client_ca is None else tls.client_ca.read_bytes()
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=ca)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _no_password() -> str:
    """Nobody is there to be asked for one."""
    raise OSError("a key that is locked with a password cannot be used")
