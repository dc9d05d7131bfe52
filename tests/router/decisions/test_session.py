"""A conversation's key: who names it, and who can never have the same."""

from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.between.way import Way
from router.decide.compose import replica_request
from router.decide.policy import Policy
from router.reception.session import METADATA_KEY, NO_SESSION, session_of
from router.shadow.request import as_shadow
from tests.router.decisions.asking import received
from tests.router.decisions.ensembles import DIGEST, ENSEMBLE, opinion

NAMES = st.text(max_size=6)
GIVEN = st.text(min_size=1, max_size=6)
SALTS = st.binary(max_size=4)
NOTHING: dict[str, str] = {}


@given(NAMES, st.none() | NAMES, NAMES, SALTS, st.dictionaries(NAMES, NAMES, max_size=3))
def test_session_id_before_metadata_before_user(
    session_id: str, named: str | None, user: str, salt: bytes, other: dict[str, str]
) -> None:
    rest = {key: value for key, value in other.items() if key != METADATA_KEY}
    metadata = rest if named is None else {**rest, METADATA_KEY: named}
    session = session_of(session_id, metadata, user, salt)
    asked = [("session_id", session_id, session_id), ("metadata", named, named), ("user", user, ""), ("none", "x", "")]
    source, name = next((source, shown) for source, said, shown in asked if said)
    assert (session.source, session.name) == (source, name)
    assert len(session.key) == (0 if session.source == "none" else 32)
    assert session == session_of(session_id, {**metadata, "beside": "it"}, user, salt), "nothing else is read"


@given(GIVEN, SALTS)
def test_a_session_has_one_key_whoever_names_it_and_a_user_another(name: str, salt: bytes) -> None:
    by_id, by_metadata = session_of(name, NOTHING, "", salt), session_of("", {METADATA_KEY: name}, "", salt)
    assert by_id.key == by_metadata.key
    assert session_of("", NOTHING, name, salt).key != by_id.key


@given(GIVEN, GIVEN, SALTS, SALTS)
def test_two_keys_are_the_same_only_for_the_same_name_and_salt(one: str, two: str, salt: bytes, other: bytes) -> None:
    same = (one, salt) == (two, other)
    assert (session_of(one, NOTHING, "", salt).key == session_of(two, NOTHING, "", other).key) == same
    assert (session_of("", NOTHING, one, salt).key == session_of("", NOTHING, two, other).key) == same


@given(GIVEN, SALTS)
def test_a_users_id_does_not_travel(user: str, salt: bytes) -> None:
    session = session_of("", NOTHING, "user " + user, salt)
    assert session.name == "" and ("user " + user).encode() not in session.key


def test_the_replica_gets_the_key_and_a_shadow_does_not() -> None:
    ask = received(metadata={"session_id": "chat", "order": "sixty-six"}, user_id="annabel", tenant_salt=b"salt")
    assert ask.session == session_of("", {"session_id": "chat"}, "", b"salt")
    decision = Policy(ENSEMBLE).decide(ask, opinion(algo=0.9), DIGEST)
    request = replica_request(ask, decision, ENSEMBLE.specialist(decision.primary), (), 1.0)
    assert request.session_key == ask.session.key
    assert b"annabel" not in request.SerializeToString() and b"sixty" not in request.SerializeToString()
    request.first_token_timeout_ms = 5
    shadow = as_shadow(request, Way("algo"), 1)
    assert shadow.session_key == b"" and not shadow.HasField("first_token_timeout_ms")


def test_nobody_named_is_nobody() -> None:
    assert received().session == NO_SESSION
    assert wire.GenerateRequest().session_key == NO_SESSION.key
