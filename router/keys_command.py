"""`octet keys`: make, see and end the keys that a router asks for."""

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from octet.clock import wall_ms
from octet.operate.table import table
from router.keys.key import ROLES, Allowance, Key
from router.keys.keys_file import KeysFile
from router.keys.keys_text import (
    MOST_KEYS,
    KeysInvalid,
    as_plain,
    check_limit,
    check_name,
    parse_time,
    shown_time,
)
from router.keys.source import VARIABLE
from router.keys.token import new_token, token_digest

_DEFAULT = "keys.json"
_WRONG = 2
_DESCRIPTION = f"""\
The keys that a router asks for. A router is told of the file with --keys, with
{VARIABLE}, or with `keys` below `router` in its configuration, and follows it: a
key works, and works no more, about a second after the file has changed.

A key itself is printed once, when it is made; the file holds its sha256.

Exit status: 0 when all went well, 2 when something must be put right first.
"""
_HEADING = ("name", "role", "tenant", "requests/min", "tokens/min", "at once", "expires")


def add_keys_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _parser(commands, "keys", "the keys that a router asks for", _DESCRIPTION)
    verbs = parser.add_subparsers(metavar="new|list|revoke", required=True)
    new = _parser(verbs, "new", "make a key, and print it once")
    new.add_argument("name", help="whom or what it is for: stands on receipts and in the audit")
    new.add_argument("--role", required=True, choices=ROLES, help="operate may do all that call may, and change things")
    new.add_argument("--requests-per-minute", type=int, metavar="N", help="default: no limit, as with the next two")
    new.add_argument("--tokens-per-minute", type=int, metavar="N", help="of prompts and answers")
    new.add_argument("--concurrency", type=int, metavar="N", help="calls at once")
    new.add_argument("--tenant", metavar="NAME", help="whose it is: shares cache and receipts (default: its own name)")
    new.add_argument("--expires", metavar="DATE", help="2027-01-31, or 2027-01-31T12:00:00Z; UTC")
    _add_common(new, _new)
    _add_common(_parser(verbs, "list", "all keys, without what is secret"), _list)
    revoke = _parser(
        verbs, "revoke", "nobody knows the key any more; calls under way finish, streams without an end do not"
    )
    revoke.add_argument("name")
    _add_common(revoke, _revoke)


def _parser(commands: Any, name: str, about: str, more: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=more or f"{about[0].upper()}{about[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _add_common(parser: argparse.ArgumentParser, act: Any) -> None:
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help=f"default: {VARIABLE}, where it is a path, or {_DEFAULT}"
    )
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=lambda arguments: _run(arguments, act))


def _run(arguments: argparse.Namespace, act: Any) -> int:
    try:
        act(arguments, KeysFile(_path(arguments.file)))
    except (KeysInvalid, OSError) as error:
        print(f"octet keys: {error}", file=sys.stderr)
        return _WRONG
    return 0


def _path(given: Path | None) -> Path:
    said = os.environ.get(VARIABLE, "").strip()
    if given is None and said.startswith("{"):
        raise KeysInvalid(f"{VARIABLE} holds the keys themselves, which no command can change: name a file with --file")
    return (given or Path(said or _DEFAULT)).expanduser()


def _new(arguments: argparse.Namespace, file: KeysFile) -> None:
    token = new_token()
    key = replace(_asked(arguments), digest=token_digest(token.encode()))

    def add(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if any(other.name == key.name for other in keys):
            raise KeysInvalid(f"there is a key {key.name!r} already: revoke it first, or take another name")
        if len(keys) >= MOST_KEYS:
            raise KeysInvalid(f"there are {MOST_KEYS:,} keys already, which is all a file may hold")
        return (*keys, key)

    file.change(add)
    if arguments.json:
        print(json.dumps(as_plain(key) | {"key": token, "file": str(file.path)}))
        return
    print(token)
    print(f"kept in {file.path} as its sha256; this is the only time it is shown", file=sys.stderr)


def _asked(arguments: argparse.Namespace) -> Key:
    """Raises KeysInvalid."""
    limits = {
        name: check_limit(value, f"--{name.replace('_', '-')}")
        for name in ("requests_per_minute", "tokens_per_minute", "concurrency")
        if (value := getattr(arguments, name)) is not None
    }
    name = check_name(arguments.name, "NAME")
    expires = None if arguments.expires is None else parse_time(arguments.expires, "--expires")
    if expires is not None and expires <= wall_ms():
        raise KeysInvalid(f"--expires must be a time to come, got {shown_time(expires)}")
    return Key(
        name=name,
        digest=b"",
        role=arguments.role,
        tenant=name if arguments.tenant is None else check_name(arguments.tenant, "--tenant"),
        allowance=Allowance(**limits),
        created=shown_time(round(time.time() * 1000)),
        expires_ms=expires,
    )


def _list(arguments: argparse.Namespace, file: KeysFile) -> None:
    keys = file.read()
    if arguments.json:
        print(json.dumps({"keys": [as_plain(key) for key in keys], "file": str(file.path)}))
        return
    print(table(_HEADING, [_row(key) for key in keys]) if keys else f"there are no keys in {file.path}")


def _row(key: Key) -> tuple[str, ...]:
    allowance = key.allowance
    limits = (allowance.requests_per_minute, allowance.tokens_per_minute, allowance.concurrency)
    until = "never" if key.expires_ms is None else shown_time(key.expires_ms)
    over = " (over)" if key.is_over(wall_ms()) else ""
    return (key.name, key.role, key.tenant, *("-" if limit is None else str(limit) for limit in limits), until + over)


def _revoke(arguments: argparse.Namespace, file: KeysFile) -> None:
    def without(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        left = tuple(key for key in keys if key.name != arguments.name)
        if len(left) == len(keys):
            raise KeysInvalid(f"there is no key {arguments.name!r}; octet keys list shows those there are")
        return left

    if not file.path.exists():
        raise KeysInvalid(f"there is no file {file.path}: name it with --file")
    file.change(without)
    if arguments.json:
        print(json.dumps({"revoked": arguments.name, "file": str(file.path)}))
    else:
        print(f"{arguments.name} is known no more to any router that reads {file.path}")
