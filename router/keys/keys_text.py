"""Keys as they are written down: JSON, a line a key, so that a person can read it and a difference shows one key."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from octet.config.kinds import NAME
from router.keys.key import ROLES, Allowance, Key

MOST_BYTES = 8 << 20
MOST_KEYS = 10_000
MOST_ALLOWED = 10**12
"""Of a limit: what nobody reaches."""
_HEX = re.compile(r"[0-9a-f]{64}")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")
_FIELDS = ("name", "sha256", "role", "tenant", *_LIMITS, "created", "expires")
_NEEDED = ("name", "sha256", "role")


class KeysInvalid(ValueError):
    """What is kept cannot be used. Says where and why, never what is secret."""


def parse_keys(text: str) -> tuple[Key, ...]:
    """Raises KeysInvalid."""
    if len(text) > MOST_BYTES:
        raise KeysInvalid(f"must be at most {MOST_BYTES:,} characters, got {len(text):,}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KeysInvalid(f"is no JSON: {error}") from None
    if not isinstance(content, dict) or set(content) != {"keys"} or not isinstance(content["keys"], list):
        raise KeysInvalid('must be {"keys": [...]}')
    if len(content["keys"]) > MOST_KEYS:
        raise KeysInvalid(f"must hold at most {MOST_KEYS:,} keys, got {len(content['keys']):,}")
    keys = tuple(_key(entry, f"keys[{index}]") for index, entry in enumerate(content["keys"]))
    for what, values in (("name", [key.name for key in keys]), ("sha256", [key.digest.hex() for key in keys])):
        _check_differ(what, values)
    return keys


def keys_text(keys: Iterable[Key]) -> str:
    lines = ",\n".join("  " + json.dumps(as_plain(key) | {"sha256": key.digest.hex()}) for key in keys)
    return f'{{"keys": [\n{lines}\n]}}\n' if lines else '{"keys": []}\n'


def as_plain(key: Key) -> dict[str, Any]:
    """Ready for JSON, without the digest."""
    limits = {name: getattr(key.allowance, name) for name in _LIMITS}
    return {
        "name": key.name,
        "role": key.role,
        "tenant": key.tenant,
        **{name: limit for name, limit in limits.items() if limit is not None},
        "created": key.created,
        **({} if key.expires_ms is None else {"expires": shown_time(key.expires_ms)}),
    }


def check_name(text: object, what: str) -> str:
    """Raises KeysInvalid."""
    if not isinstance(text, str) or NAME.pattern is None or not NAME.pattern.fullmatch(text):
        raise KeysInvalid(f"{what} must be {NAME.what}, of at most {NAME.most} characters")
    return text


def check_limit(value: object, what: str) -> int:
    """Raises KeysInvalid."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_ALLOWED:
        raise KeysInvalid(f"{what} must be a whole number in [1, {MOST_ALLOWED:,}]")
    return value


def parse_time(text: object, what: str) -> int:
    """Milliseconds since 1970. A day alone is its beginning, and a time without a zone is UTC's. Raises KeysInvalid."""
    try:
        found = datetime.fromisoformat(text if isinstance(text, str) else "")
        at = (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise KeysInvalid(f"{what} must be a date such as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return int(at.timestamp()) * 1000


def shown_time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _check_differ(what: str, values: list[str]) -> None:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            raise KeysInvalid(f"keys[{index}].{what} must differ from that of every other key")
        seen.add(value)


def _key(entry: object, where: str) -> Key:
    if not isinstance(entry, dict):
        raise KeysInvalid(f"{where} must be a table of {', '.join(_FIELDS)}")
    for name in entry:
        if name not in _FIELDS:
            raise KeysInvalid(f"{where} has a field that nobody knows; known are {', '.join(_FIELDS)}")
    for name in _NEEDED:
        if name not in entry:
            raise KeysInvalid(f"{where}.{name} is missing")
    if not isinstance(entry["sha256"], str) or not _HEX.fullmatch(entry["sha256"]):
        raise KeysInvalid(f"{where}.sha256 must be 64 lowercase hex digits")
    if entry["role"] not in ROLES:
        raise KeysInvalid(f"{where}.role must be one of {', '.join(ROLES)}")
    name = check_name(entry["name"], f"{where}.name")
    expires = entry.get("expires")
    return Key(
        name=name,
        digest=bytes.fromhex(entry["sha256"]),
        role=entry["role"],
        tenant=check_name(entry.get("tenant", name), f"{where}.tenant"),
        allowance=_allowance(entry, where),
        created=str(entry.get("created", ""))[: NAME.most],
        expires_ms=None if expires is None else parse_time(expires, f"{where}.expires"),
    )


def _allowance(entry: Mapping[str, object], where: str) -> Allowance:
    given = {name: check_limit(entry[name], f"{where}.{name}") for name in _LIMITS if entry.get(name) is not None}
    return Allowance(**given)
