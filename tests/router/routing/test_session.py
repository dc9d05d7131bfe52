"""The session key of a conversation: how it is derived, and that different conversations have different keys."""

from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.quality.shadow_copy import to_shadow_request
from router.request import NO_SESSION, SESSION_METADATA_KEY, identify_session
from router.routing.dispatch_plan import Candidate
from router.routing.policy import RoutingPolicy
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, opinion
from tests.router.routing.sample_requests import replica_request, validated_request

NAMES = st.text(max_size=6)
GIVEN = st.text(min_size=1, max_size=6)
SALTS = st.binary(max_size=4)
NOTHING: dict[str, str] = {}


@given(NAMES, st.none() | NAMES, NAMES, SALTS, st.dictionaries(NAMES, NAMES, max_size=3))
def test_session_id_comes_before_metadata_and_metadata_before_user(
    session_id: str, named: str | None, user: str, salt: bytes, other: dict[str, str]
) -> None:
    rest = {key: value for key, value in other.items() if key != SESSION_METADATA_KEY}
    metadata = rest if named is None else {**rest, SESSION_METADATA_KEY: named}
    session = identify_session(session_id, metadata, user, salt)
    asked = [("session_id", session_id, session_id), ("metadata", named, named), ("user", user, ""), ("none", "x", "")]
    source, name = next((source, shown) for source, said, shown in asked if said)
    assert (session.source, session.name) == (source, name)
    assert len(session.key) == (0 if session.source == "none" else 32)
    assert session == identify_session(session_id, {**metadata, "beside": "it"}, user, salt), (
        "no other field may be read"
    )


@given(GIVEN, SALTS)
def test_session_key_is_independent_of_its_field_and_differs_from_a_user_key(name: str, salt: bytes) -> None:
    by_id, by_metadata = (
        identify_session(name, NOTHING, "", salt),
        identify_session("", {SESSION_METADATA_KEY: name}, "", salt),
    )
    assert by_id.key == by_metadata.key
    assert identify_session("", NOTHING, name, salt).key != by_id.key


@given(GIVEN, GIVEN, SALTS, SALTS)
def test_two_keys_are_the_same_only_for_the_same_name_and_salt(one: str, two: str, salt: bytes, other: bytes) -> None:
    same = (one, salt) == (two, other)
    assert (identify_session(one, NOTHING, "", salt).key == identify_session(two, NOTHING, "", other).key) == same
    assert (identify_session("", NOTHING, one, salt).key == identify_session("", NOTHING, two, other).key) == same


@given(GIVEN, SALTS)
def test_a_users_id_is_not_sent(user: str, salt: bytes) -> None:
    session = identify_session("", NOTHING, "user " + user, salt)
    assert session.name == "" and ("user " + user).encode() not in session.key


def test_the_replica_gets_the_key_and_a_shadow_does_not() -> None:
    ask = validated_request(
        metadata={"session_id": "chat", "order": "sixty-six"}, user_id="annabel", tenant_salt=b"salt"
    )
    assert ask.session == identify_session("", {"session_id": "chat"}, "", b"salt")
    decision = RoutingPolicy(ENSEMBLE).decide(ask, opinion(algo=0.9), DIGEST)
    request = replica_request(ask, decision, ENSEMBLE.specialist(decision.primary), (), 1.0)
    assert request.session_key == ask.session.key
    assert b"annabel" not in request.SerializeToString() and b"sixty" not in request.SerializeToString()
    request.first_token_timeout_ms = 5
    shadow = to_shadow_request(request, Candidate("algo"), 1)
    assert shadow.session_key == b"" and not shadow.HasField("first_token_timeout_ms")


def test_a_request_without_a_session_has_no_session_key() -> None:
    assert validated_request().session == NO_SESSION
    assert wire.GenerateRequest().session_key == NO_SESSION.key
