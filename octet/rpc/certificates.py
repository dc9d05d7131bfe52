"""Certificates that are followed: whoever connects after the files have changed is shown the new ones."""

import logging
import ssl
from dataclasses import dataclass, field
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

    def load(self) -> "Loaded":
        """Raises OSError for files that cannot be read, do not belong together, or change meanwhile."""
        contents = self._read()  # OpenSSL does not name what it cannot read
        context = self._context()
        if self._read() != contents:
            raise OSError(f"{self.certificate} and {self.key} change while they are read")
        certificate, key, *client_ca = contents
        return Loaded(context, certificate, key, client_ca[0] if client_ca else None)

    def _read(self) -> list[bytes]:
        return [path.read_bytes() for path in self.files()]

    def _context(self) -> ssl.SSLContext:
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


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the files held at one time, and that it can be used: nothing of it is read again."""

    context: ssl.SSLContext
    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None

    def for_grpc(self) -> Any:
        pair = (self.key, self.certificate)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=self.client_ca)


class Followed:
    """Looks at the files whenever somebody connects. What cannot be used changes nothing, and is told once."""

    def __init__(self, tls: Tls) -> None:
        """Raises OSError."""
        self._tls = tls
        self._seen = tls.stamp()
        self._lock = Lock()
        self.first = tls.load()

    def renewed(self) -> Loaded | None:
        """What the files hold, where they have changed since they were last looked at and can be used."""
        with self._lock:
            stamp = self._tls.stamp()
            if stamp == self._seen:
                return None
            self._seen = stamp
        try:
            found = self._tls.load()
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
        made._current = made._followed.first.context
        return made

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """One connection."""
        renewed = self._followed.renewed()
        self._current = self._current if renewed is None else renewed.context
        return self._current.wrap_bio(*arguments, **options)


def grpc_credentials(tls: Tls) -> Any:
    """A server's. Raises OSError."""
    followed = Followed(tls)

    def renewed() -> Any | None:
        loaded = followed.renewed()
        return None if loaded is None else loaded.for_grpc()

    is_required = tls.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(followed.first.for_grpc(), renewed, is_required)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _no_password() -> str:
    """Nobody is there to be asked for one."""
    raise OSError("a key that is locked with a password cannot be used")
