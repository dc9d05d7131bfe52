"""What a caller shows. It is told once, to whoever makes it; kept is only its digest."""

import secrets
from hashlib import sha256

PREFIX = "octet_"
"""So that whoever finds one, in a log or a repository, knows what it is."""
MOST_BYTES = 256
"""Nothing longer is even looked at."""
_RANDOM_BYTES = 32


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def token_digest(token: bytes) -> bytes:
    """Of 256 random bits, which nobody guesses however quickly they are hashed: a slow hash would protect nothing, and
    would cost every request."""
    return sha256(token).digest()
