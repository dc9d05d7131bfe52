"""Numbers in a URL."""

from starlette.requests import Request

from octet.rpc.refusal import shorten
from router.http.fault import wrong

_DIGITS = 18


def whole(request: Request, name: str) -> int:
    """0 where it is not given. Raises Fault."""
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise wrong(name, "a whole number", shorten(text))
    return int(text)
