"""`octet keys`: create, list and revoke API keys."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from octet.cli.arguments import KEYS_VARIABLE, Commands, add_flag, add_option, add_parser, report_errors
from octet.clock import wall_ms
from octet.terminal import format_table
from router.api.keys import key_file
from router.api.keys.key_file import KeysFile, KeysInvalid, format_time, key_to_dict
from router.api.keys.keys import ROLES, Allowance, Key, new_token, token_digest

KeysCommand = Callable[[argparse.Namespace, KeysFile], None]
_DEFAULT_FILE = "keys.json"
_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")
_HELP = f"""

A router reads its keys from the file named by --keys, by {KEYS_VARIABLE}, or by
`router.keys` in its configuration, and watches it: a change takes effect within
about a second.

A key is printed only once, when it is created; the file holds its sha256.

Exit status: 0 on success, 2 when an option or the file is invalid.
"""
_HEADING = ("name", "role", "tenant", "requests/min", "tokens/min", "at once", "expires")


def add_keys_command(commands: Commands) -> None:
    parser = add_parser(commands, "keys", "create, list and revoke API keys of a router", _HELP)
    verbs = parser.add_subparsers(metavar="new|list|revoke", required=True)
    new = _add_verb(verbs, "new", "create a key and print it once", _new)
    new.add_argument("name", help="name of the caller, shown on receipts and in the audit log")
    new.add_argument("--role", required=True, choices=ROLES, help="call: send requests; operate: also make changes")
    option = partial(add_option, new)
    option("--requests-per-minute", "N", "default: no limit", int)
    option("--tokens-per-minute", "N", "tokens of prompts and answers; default: no limit", int)
    option("--concurrency", "N", "requests at once; default: no limit", int)
    option("--tenant", "NAME", "tenant whose cache and receipts the key shares (default: the key's name)")
    option("--expires", "DATE", "2027-01-31, or 2027-01-31T12:00:00Z; UTC")
    _add_verb(verbs, "list", "list all keys, without their secrets", _list)
    about = "revoke a key; running requests finish, event streams are closed"
    _add_verb(verbs, "revoke", about, _revoke).add_argument("name", help="name of the key")


def _add_verb(verbs: Any, name: str, about: str, act: KeysCommand) -> argparse.ArgumentParser:
    parser = add_parser(verbs, name, about)
    add_option(parser, "--file", "FILE", f"default: the path in {KEYS_VARIABLE}, or {_DEFAULT_FILE}", Path)
    add_flag(parser, "--json", "print all fields as JSON")

    def run(arguments: argparse.Namespace) -> int:
        act(arguments, KeysFile(_path(arguments.file)))
        return 0

    parser.set_defaults(run=lambda arguments: report_errors("keys", lambda: run(arguments)))
    return parser


def _path(given: Path | None) -> Path:
    variable = os.environ.get(KEYS_VARIABLE, "").strip()
    if given is None and variable.startswith("{"):
        raise KeysInvalid(f"{KEYS_VARIABLE} holds the keys themselves, not a path: name a file with --file")
    return (given or Path(variable or _DEFAULT_FILE)).expanduser()


def _new(arguments: argparse.Namespace, file: KeysFile) -> None:
    token = new_token()
    key = replace(_key_from_options(arguments), digest=token_digest(token.encode()))

    def add(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if any(other.name == key.name for other in keys):
            raise KeysInvalid(f"the key {key.name!r} already exists: revoke it first, or choose another name")
        if len(keys) >= key_file.MAX_KEYS:
            raise KeysInvalid(f"a key file can hold at most {key_file.MAX_KEYS:,} keys, and this one is full")
        return (*keys, key)

    file.change(add)
    if arguments.json:
        print(json.dumps(key_to_dict(key) | {"key": token, "file": str(file.path)}))
        return
    print(token)
    path = file.path.absolute()
    print(f"Saved to {path} as a sha256 digest. The key is not shown again.", file=sys.stderr)
    started = f"A router started with --keys {shlex.quote(str(path))}"
    other = f"or with this path in router.keys or {KEYS_VARIABLE}"
    print(f"{started}, {other}, accepts it; a running one within about a second.", file=sys.stderr)


def _key_from_options(arguments: argparse.Namespace) -> Key:
    given = {name: value for name in _LIMITS if (value := getattr(arguments, name)) is not None}
    limits = {name: key_file.check_limit(value, f"--{name.replace('_', '-')}") for name, value in given.items()}
    name = key_file.check_name(arguments.name, "NAME")
    expires = None if arguments.expires is None else key_file.parse_time(arguments.expires, "--expires")
    if expires is not None and expires <= wall_ms():
        raise KeysInvalid(f"--expires must be in the future, got {format_time(expires)}")
    return Key(
        name=name,
        digest=b"",
        role=arguments.role,
        tenant=name if arguments.tenant is None else key_file.check_name(arguments.tenant, "--tenant"),
        allowance=Allowance(**limits),
        created=format_time(wall_ms()),
        expires_ms=expires,
    )


def _list(arguments: argparse.Namespace, file: KeysFile) -> None:
    keys = file.read()
    text = format_table(_HEADING, [_row(key) for key in keys]) if keys else f"there are no keys in {file.path}"
    fields = {"keys": [key_to_dict(key) for key in keys], "file": str(file.path)}
    print(json.dumps(fields) if arguments.json else text)


def _row(key: Key) -> tuple[str, ...]:
    limits = ["-" if (limit := getattr(key.allowance, name)) is None else str(limit) for name in _LIMITS]
    expires = "never" if key.expires_ms is None else format_time(key.expires_ms)
    return key.name, key.role, key.tenant, *limits, expires + (" (expired)" if key.has_expired(wall_ms()) else "")


def _revoke(arguments: argparse.Namespace, file: KeysFile) -> None:
    def without(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        left = tuple(key for key in keys if key.name != arguments.name)
        if len(left) == len(keys):
            raise KeysInvalid(f"there is no key {arguments.name!r} in {file.path}; for a list, run: octet keys list")
        return left

    if not file.path.exists():
        raise KeysInvalid(f"there is no file {file.path}: name the file with --file")
    file.change(without)
    fields = {"revoked": arguments.name, "file": str(file.path)}
    print(json.dumps(fields) if arguments.json else f"Revoked key {arguments.name}.")
