"""Which conversation a request belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octet.identity import digest_of

METADATA_KEY = "session_id"
KeySource = Literal["session_id", "metadata", "user", "none"]


@dataclass(frozen=True, slots=True)
class Session:
    source: KeySource = "none"
    """Who named it."""
    name: str = ""
    """As the caller did; empty for a user, whose id is nobody's to read in a receipt."""
    key: bytes = b""
    """32 bytes that stand for it, salted: ids do not travel. Empty where there is no conversation."""


NO_SESSION = Session()


def session_of(session_id: str, metadata: Mapping[str, str], user_id: str, tenant_salt: bytes) -> Session:
    """The first of the three that is there. A session has the same key whichever way it is named; no user's key is a
    session's, and no tenant's another's."""
    if session_id:
        return Session("session_id", session_id, _key("session", session_id, tenant_salt))
    named = metadata.get(METADATA_KEY, "")
    if named:
        return Session("metadata", named, _key("session", named, tenant_salt))
    if user_id:
        return Session("user", "", _key("user", user_id, tenant_salt))
    return NO_SESSION


def _key(kind: str, name: str, tenant_salt: bytes) -> bytes:
    return digest_of((b"conversation", kind.encode(), name.encode(), tenant_salt))
