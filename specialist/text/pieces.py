"""What each token stands for, as the tokenizer's decoder would write it."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from specialist.models.checkpoint import Vocabulary
from specialist.text.errors import VocabularyRefused

SPACE = "\u2581"
_FALLBACK = re.compile(r"<0x(\+[0-9A-Fa-f]|[0-9A-Fa-f]{2})>")


def _printable_bytes() -> Iterator[tuple[str, int]]:
    """Byte-level vocabularies write a byte as itself where that is a visible character, else as one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    yield from ((chr(byte), byte) for byte in visible)
    yield from ((chr(0x100 + index), byte) for index, byte in enumerate(hidden))


BYTE_OF = dict(_printable_bytes())
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


class ByteLevel(NamedTuple):
    """Every token is some bytes; an answer is all of them read as UTF-8."""

    def piece(self, token: str) -> bytes:
        try:
            return bytes([BYTE_OF[character] for character in token])
        except KeyError:  # an added token is written as it is
            return token.encode()


class ByteFallback(NamedTuple):
    """A token is some text, or one byte of a character the vocabulary has no token for."""

    num_dropped: int
    """Spaces the tokenizer put before a text, taken off its beginning again."""

    def piece(self, token: str) -> str | int:
        if fallback := _FALLBACK.fullmatch(token):
            return int(fallback[1], 16)
        return token.replace(SPACE, " ")


class Metaspace(NamedTuple):
    """A token is some text; the first one's spaces are not part of it."""

    replacement: str
    drops_first: bool

    def piece(self, token: str) -> str:
        return token


Spelling = ByteLevel | ByteFallback | Metaspace


def _spelling_of(decoder: dict[str, Any] | None) -> Spelling:
    match decoder:
        case {"type": "ByteLevel"} | {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}:
            return ByteLevel()
        case {"type": "Metaspace", "replacement": str(replacement), "prepend_scheme": scheme}:
            return Metaspace(replacement, scheme != "never")
        case {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *rest,
            ],
        }:
            return ByteFallback(_num_dropped(rest))
        case _:
            raise _unknown(decoder)


def _num_dropped(rest: list[dict[str, Any]]) -> int:
    match rest:
        case []:
            return 0
        case [{"type": "Strip", "content": " ", "start": int(start), "stop": 0}]:
            return start
        case _:
            raise _unknown(rest)


def _unknown(decoder: object) -> VocabularyRefused:
    return VocabularyRefused(
        f"the tokenizer's decoder is {json.dumps(decoder)[:200]}; "
        "known are ByteLevel, Metaspace, and Replace + ByteFallback + Fuse (+ Strip)"
    )


class Pieces:
    """One for a vocabulary, shared by its answers. A token is looked up when first met; threads may share it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises VocabularyRefused for a decoder whose text cannot be streamed exactly."""
        self.spelling = _spelling_of(json.loads(vocabulary.tokenizer.to_str())["decoder"])
        self._tokenizer = vocabulary.tokenizer
        self._known: dict[int, bytes | str | int | None] = dict.fromkeys(vocabulary.control_ids.values())

    def __getitem__(self, token_id: int) -> bytes | str | int | None:
        """None for a token that writes nothing: a control token, or an id the vocabulary leaves unused."""
        try:
            return self._known[token_id]
        except KeyError:
            token = self._tokenizer.id_to_token(token_id)
            piece = None if token is None else self.spelling.piece(token)
            self._known[token_id] = piece
            return piece
