"""The headers that HPACK knows by number from the start (RFC 7541, appendix A)."""

from typing import TypeAlias

Header: TypeAlias = tuple[str, str]
Headers: TypeAlias = tuple[Header, ...]

_LINES = """\
:authority
:method GET
:method POST
:path /
:path /index.html
:scheme http
:scheme https
:status 200
:status 204
:status 206
:status 304
:status 400
:status 404
:status 500
accept-charset
accept-encoding gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate"""


def _header(line: str) -> Header:
    name, _, value = line.partition(" ")
    return name, value


STATIC: Headers = tuple(map(_header, _LINES.splitlines()))
"""Counted from one."""
