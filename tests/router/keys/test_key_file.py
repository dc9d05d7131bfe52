"""The key file round-trips. Errors say where in the file the mistake is, and reveal no secrets."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.keys.key_file import MAX_FILE_BYTES, MAX_KEYS, KeysInvalid, format_keys, parse_keys
from router.api.keys.keys import ROLES, TOKEN_PREFIX, Allowance, Key, KeySet, new_token, token_digest

NAMES = st.builds("{}{}".format, st.sampled_from("az09"), st.text("abc019._-", max_size=20))
LIMITS = st.none() | st.integers(1, 10**12)
KEYS = st.builds(
    Key,
    name=NAMES,
    digest=st.binary(min_size=32, max_size=32),
    role=st.sampled_from(ROLES),
    tenant=NAMES,
    allowance=st.builds(Allowance, requests_per_minute=LIMITS, tokens_per_minute=LIMITS, concurrency=LIMITS),
    created=st.just("2026-11-15T12:00:00Z"),
    expires_ms=st.none() | st.integers(0, 253_402_300_799).map(lambda seconds: seconds * 1000),
)
GOOD = {"name": "ann", "sha256": "a" * 64, "role": "call"}


@given(st.lists(KEYS, max_size=5, unique_by=(lambda key: key.name, lambda key: key.digest)))
def test_key_file_round_trip(keys: list[Key]) -> None:
    assert list(parse_keys(format_keys(keys))) == keys


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Ann"}, r"keys\[0\].name must be a name of lower-case"),
        ({"name": "a" * 65}, r"keys\[0\].name"),
        ({"name": 7}, r"keys\[0\].name"),
        ({"sha256": "a" * 63}, r"keys\[0\].sha256 must be 64 lowercase hex digits"),
        ({"sha256": "A" * 64}, r"keys\[0\].sha256"),
        ({"role": "admin"}, r"keys\[0\].role must be one of call, operate"),
        ({"tenant": ""}, r"keys\[0\].tenant"),
        ({"tenant": "a:b"}, r"keys\[0\].tenant"),
        ({"concurrency": 0}, r"keys\[0\].concurrency must be a whole number in \[1,"),
        ({"concurrency": True}, r"keys\[0\].concurrency"),
        ({"tokens_per_minute": 1.5}, r"keys\[0\].tokens_per_minute"),
        ({"requests_per_minute": 10**13}, r"keys\[0\].requests_per_minute"),
        ({"expires": "soon"}, r"keys\[0\].expires must be a date"),
        ({"expires": "9999-12-31T23:59:59-23:59"}, r"keys\[0\].expires must be a date"),
        ({"expires": 5}, r"keys\[0\].expires must be a date"),
        ({"key": "octet_secret"}, r"keys\[0\] has an unknown field"),
    ],
)
def test_key_file_errors_name_their_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KeysInvalid, match=message) as caught:
        parse_keys(json.dumps({"keys": [GOOD | change]}))
    assert "octet_secret" not in str(caught.value)


@pytest.mark.parametrize("missing", ["name", "sha256", "role"])
def test_a_missing_key_field_is_named(missing: str) -> None:
    entry = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(KeysInvalid, match=rf"keys\[0\].{missing} is missing"):
        parse_keys(json.dumps({"keys": [entry]}))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"keys": {}}', '{"keys": [1]}', '{"keys": [], "more": 1}', "[" * 100_000, "\ud800"],
)
def test_invalid_key_file_is_refused(text: str) -> None:
    with pytest.raises(KeysInvalid):
        parse_keys(text)


def test_key_file_is_bounded() -> None:
    with pytest.raises(KeysInvalid, match="at most"):
        parse_keys(" " * (MAX_FILE_BYTES + 1))
    many = [{**GOOD, "name": f"k{number}", "sha256": f"{number:064x}"} for number in range(MAX_KEYS + 1)]
    with pytest.raises(KeysInvalid, match=r"at most 10,000 keys"):
        parse_keys(json.dumps({"keys": many}))
    assert len(parse_keys(json.dumps({"keys": many[:-1]}))) == MAX_KEYS


@pytest.mark.parametrize(("field", "value"), [("name", "bob"), ("sha256", "b" * 64)])
def test_names_and_digests_of_keys_are_unique(field: str, value: str) -> None:
    other = {**GOOD, "name": "bob", "sha256": "b" * 64} | {field: GOOD[field]}
    with pytest.raises(KeysInvalid, match=rf"keys\[1\].{field} must differ"):
        parse_keys(json.dumps({"keys": [GOOD, other]}))
    assert other | {field: value} != other


def test_token_is_256_random_bits_after_a_prefix() -> None:
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(token.startswith(TOKEN_PREFIX) and len(token) == len(TOKEN_PREFIX) + 43 for token in tokens)


@given(st.binary(max_size=400))
def test_key_set_finds_only_its_keys(shown: bytes) -> None:
    token = b"octet_the-one"
    book = KeySet([Key("ann", token_digest(token), "call", "ann")])
    assert (book.find(shown, 0) is not None) == (shown == token)
    assert book.find(token, 0) is not None


def test_repr_hides_secrets() -> None:
    digest = token_digest(b"octet_x")
    assert digest.hex() not in repr(Key("ann", digest, "call", "ann")) and repr(digest) not in repr(
        Key("ann", digest, "call", "ann")
    )
