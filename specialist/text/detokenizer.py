"""Text out of tokens, as they come."""

from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from typing import Protocol

from specialist.text.pieces import ByteFallback, ByteLevel, Metaspace, Pieces


class _Writer(Protocol):
    def write(self, pieces: Sequence[bytes | str | int]) -> str: ...
    def finish(self) -> str: ...


class Detokenizer:
    """For one answer. All that `push` and `finish` return, put together, is what decoding all tokens at once gives;
    whole characters only; control tokens write nothing.
    """

    def __init__(self, pieces: Pieces, spoken: Mapping[int, str] | None = None) -> None:
        """`spoken` are control tokens that write something after all."""
        self._pieces = pieces
        self._spoken = {token: pieces.spelling.piece(text) for token, text in (spoken or {}).items()}
        self._writer = _writer_of(pieces)

    def push(self, tokens: Sequence[int]) -> str:
        pieces, spoken = self._pieces, self._spoken
        found = (spoken[token] if token in spoken else pieces[token] for token in tokens)
        return self._writer.write([piece for piece in found if piece is not None])

    def finish(self) -> str:
        return self._writer.finish()

    def spell(self, token: int) -> bytes:
        """What it writes by itself, in the middle of a text: a part of a character, it may be."""
        piece = self._pieces[token]
        match piece, self._pieces.spelling:
            case None, _:
                return b""
            case bytes(), _:
                return piece
            case int(), _:
                return bytes([piece])
            case str(), Metaspace(replacement, _):
                return piece.replace(replacement, " ").encode()
        return str(piece).encode()


def _writer_of(pieces: Pieces) -> _Writer:
    match pieces.spelling:
        case ByteLevel():
            return _ByteWriter()
        case ByteFallback(num_dropped):
            return _FallbackWriter(num_dropped)
        case Metaspace(replacement, drops_first):
            return _MetaspaceWriter(replacement, drops_first)


class _ByteWriter:
    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("replace").decode

    def write(self, pieces: Sequence[bytes | str | int]) -> str:
        return self._decode(b"".join(pieces))  # type: ignore[arg-type]  # byte-level pieces are bytes

    def finish(self) -> str:
        return self._decode(b"", True)


class _FallbackWriter:
    """A run of byte tokens is read as a whole: one bad byte makes every byte of its run U+FFFD, so a run is held
    back until it ends.
    """

    def __init__(self, num_dropped: int) -> None:
        self._run = bytearray()
        self._num_to_drop = num_dropped

    def write(self, pieces: Sequence[bytes | str | int]) -> str:
        parts: list[str] = []
        for piece in pieces:
            if isinstance(piece, int):
                self._run.append(piece)
            else:
                parts += self._end_run(), str(piece)
        return self._without_prefix("".join(parts))

    def finish(self) -> str:
        return self._without_prefix(self._end_run())

    def _end_run(self) -> str:
        if not self._run:
            return ""
        run, self._run = self._run, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _without_prefix(self, text: str) -> str:
        while self._num_to_drop and text:
            if not text.startswith(" "):
                self._num_to_drop = 0
                break
            self._num_to_drop -= 1
            text = text[1:]
        return text


class _MetaspaceWriter:
    def __init__(self, replacement: str, drops_first: bool) -> None:
        self._replacement = replacement
        self._space = "" if drops_first else " "

    def write(self, pieces: Sequence[bytes | str | int]) -> str:
        text = ""
        for piece in pieces:
            text += str(piece).replace(self._replacement, self._space)
            self._space = " "
        return text

    def finish(self) -> str:
        return ""
