"""The page's files, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType

PAGE = "index.html"
_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    media_type: str
    etag: str
    """Of the content, quoted as a header has it."""


def page_files() -> Mapping[str, PageFile]:
    """By name. What the browser may ask for is what stands here; nothing is ever looked up on disk by a name that
    somebody sent."""
    folder = files("router.dashboard").joinpath("page")
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES}
    return MappingProxyType({name: _file(name, content) for name, content in sorted(found.items())})


def _file(name: str, content: bytes) -> PageFile:
    return PageFile(content, _TYPES[name.rpartition(".")[2]], f'"{sha256(content).hexdigest()[:32]}"')
