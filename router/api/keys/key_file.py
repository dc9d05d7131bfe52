"""The key file: its format, atomic changes, reloading.

The file is JSON with one key per line, so that people can read it and a diff shows single keys.
"""

import asyncio
import fcntl
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from octet.config.annotations import NAME
from octet.identity import file_stamp
from router.api.keys.keys import ROLES, Allowance, Key, KeySet

_log = logging.getLogger(__name__)
KEYS_VARIABLE = "OCTET_KEYS"
POLL_SECONDS = 1.0
MAX_FILE_BYTES = 8 << 20
MAX_KEYS = 10_000
MAX_LIMIT = 10**12
_MODE = 0o600
_SHA256_HEX = re.compile(r"[0-9a-f]{64}")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")
_FIELDS = ("name", "sha256", "role", "tenant", *_LIMITS, "created", "expires")
_REQUIRED = ("name", "sha256", "role")


class KeysInvalid(ValueError):
    """The keys cannot be used. The message states where and why, and contains no secret."""


def parse_keys(text: str) -> tuple[Key, ...]:
    if len(text) > MAX_FILE_BYTES:
        raise KeysInvalid(f"the content must be at most {MAX_FILE_BYTES:,} characters, got {len(text):,}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KeysInvalid(f"the content is not JSON: {error}") from None
    if not isinstance(content, dict) or set(content) != {"keys"} or not isinstance(content["keys"], list):
        raise KeysInvalid('the content must be {"keys": [...]}')
    if len(content["keys"]) > MAX_KEYS:
        raise KeysInvalid(f"there must be at most {MAX_KEYS:,} keys, got {len(content['keys']):,}")
    keys = tuple(_parse_key(entry, f"keys[{index}]") for index, entry in enumerate(content["keys"]))
    _check_unique("name", [key.name for key in keys])
    _check_unique("sha256", [key.digest.hex() for key in keys])
    return keys


def format_keys(keys: Iterable[Key]) -> str:
    lines = ",\n".join("  " + json.dumps(key_to_dict(key) | {"sha256": key.digest.hex()}) for key in keys)
    return f'{{"keys": [\n{lines}\n]}}\n' if lines else '{"keys": []}\n'


def key_to_dict(key: Key) -> dict[str, Any]:
    """Return the key's fields for JSON, without the digest."""
    limits = {name: getattr(key.allowance, name) for name in _LIMITS}
    return {
        "name": key.name,
        "role": key.role,
        "tenant": key.tenant,
        **{name: limit for name, limit in limits.items() if limit is not None},
        "created": key.created,
        **({} if key.expires_ms is None else {"expires": format_time(key.expires_ms)}),
    }


def check_name(text: object, what: str) -> str:
    if not isinstance(text, str) or NAME.pattern is None or not NAME.pattern.fullmatch(text):
        raise KeysInvalid(f"{what} must be {NAME.what}, of at most {NAME.most} characters")
    return text


def check_limit(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
        raise KeysInvalid(f"{what} must be a whole number in [1, {MAX_LIMIT:,}]")
    return value


def parse_time(text: object, what: str) -> int:
    """Convert a date or time to milliseconds since 1970. The defaults are 00:00 and UTC. Raises KeysInvalid."""
    try:
        found = datetime.fromisoformat(text if isinstance(text, str) else "")
        at = (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise KeysInvalid(f"{what} must be a date such as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return int(at.timestamp()) * 1000


def format_time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _check_unique(field: str, values: list[str]) -> None:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            raise KeysInvalid(f"keys[{index}].{field} must differ from the {field} of every other key")
        seen.add(value)


def _parse_key(entry: object, where: str) -> Key:
    if not isinstance(entry, dict):
        raise KeysInvalid(f"{where} must be an object; known fields are {', '.join(_FIELDS)}")
    if not entry.keys() <= set(_FIELDS):
        raise KeysInvalid(f"{where} has an unknown field; known fields are {', '.join(_FIELDS)}")
    for name in _REQUIRED:
        if name not in entry:
            raise KeysInvalid(f"{where}.{name} is missing")
    if not isinstance(entry["sha256"], str) or not _SHA256_HEX.fullmatch(entry["sha256"]):
        raise KeysInvalid(f"{where}.sha256 must be 64 lowercase hex digits")
    if entry["role"] not in ROLES:
        raise KeysInvalid(f"{where}.role must be one of {', '.join(ROLES)}")
    name = check_name(entry["name"], f"{where}.name")
    limits = {name: check_limit(entry[name], f"{where}.{name}") for name in _LIMITS if entry.get(name) is not None}
    expires = entry.get("expires")
    return Key(
        name=name,
        digest=bytes.fromhex(entry["sha256"]),
        role=entry["role"],
        tenant=check_name(entry.get("tenant", name), f"{where}.tenant"),
        allowance=Allowance(**limits),
        created=str(entry.get("created", ""))[: NAME.most],
        expires_ms=None if expires is None else parse_time(expires, f"{where}.expires"),
    )


class KeysFile:
    """A key file. It is read as a whole, and replaced as a whole by one writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Key, ...]:
        """Return the keys. Raises KeysInvalid with a message that names the file, or OSError."""
        if not self.path.is_file() and self.path.exists():
            raise KeysInvalid(f"{self.path} is not a regular file")
        with self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise KeysInvalid(f"{self.path} is writable by users other than its owner: run chmod go-w {self.path}")
            content = file.read(MAX_FILE_BYTES + 1)
        try:
            return parse_keys(content.decode())
        except UnicodeDecodeError:
            raise KeysInvalid(f"{self.path} is not UTF-8") from None
        except KeysInvalid as invalid:
            raise KeysInvalid(f"{self.path}: {invalid}") from None

    def change(self, make: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> None:
        """Atomically replace the keys with `make(keys)`. Raises KeysInvalid or OSError."""
        target = self.path.resolve()  # replaces the file that symbolic links point to
        with _exclusive_lock(target.parent) as folder:
            self._write(make(self.read() if self.path.exists() else ()), target)
            os.fsync(folder)

    def _write(self, keys: tuple[Key, ...], target: Path) -> None:
        descriptor, name = mkstemp(prefix=f".{target.name}.", dir=target.parent)  # never opens an existing file
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                _copy_permissions(file.fileno(), target)
                file.write(format_keys(keys))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _copy_permissions(descriptor: int, target: Path) -> None:
    """Give the new file the owner and mode of `target`, so that a router run by another user can still read it."""
    try:
        existing = target.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, _MODE)
        return
    with suppress(PermissionError):
        os.fchown(descriptor, existing.st_uid, existing.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(existing.st_mode))


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class StaticKeys:
    keys: KeySet

    def load(self) -> KeySet:
        return self.keys

    async def follow(self, on_change: Callable[[KeySet], None]) -> None:
        await asyncio.get_running_loop().create_future()


class WatchedKeys:
    """Keys from a file. The file is polled, which works on every file system and with all kinds of links. If it becomes
    unusable, that is logged once, and the old keys stay valid."""

    def __init__(self, file: KeysFile, interval: float = POLL_SECONDS) -> None:
        self._file = file
        self._interval = interval
        self._seen: tuple[int, ...] | None = None

    def load(self) -> KeySet:
        """Read the keys. Raises KeysInvalid or OSError."""
        self._seen = file_stamp(self._file.path)
        return KeySet(self._file.read())

    async def follow(self, on_change: Callable[[KeySet], None]) -> None:
        """Call `on_change` with the new keys after every valid change; never return."""
        while True:
            await asyncio.sleep(self._interval)
            stamp = await asyncio.to_thread(file_stamp, self._file.path)
            if stamp == self._seen:
                continue
            self._seen = stamp
            try:
                keys = KeySet(await asyncio.to_thread(self._file.read))
            except (KeysInvalid, OSError) as error:
                _log.error("keeping the old keys: %s", error)
                continue
            on_change(keys)
            _log.info("reloaded %d keys", len(keys.keys))


KeySource = StaticKeys | WatchedKeys


def open_keys(option: Path | None, environment: Mapping[str, str], configured: str | None) -> KeySource | None:
    """Open the keys set by `option`, else by the environment, else by the configuration; None if none is set. The
    environment variable holds a path or, if it starts with a brace, the content of a key file. Raises KeysInvalid."""
    variable = environment.get(KEYS_VARIABLE, "").strip()
    if option is None and variable.startswith("{"):
        try:
            return StaticKeys(KeySet(parse_keys(variable)))
        except KeysInvalid as invalid:
            raise KeysInvalid(f"{KEYS_VARIABLE}: {invalid}") from None
    path = option or variable or configured
    return None if not path else WatchedKeys(KeysFile(Path(os.fspath(path)).expanduser()))
