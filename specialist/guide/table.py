"""A vocabulary as the grammar library reads it: the bytes that each token writes."""

from collections.abc import Iterable, Iterator

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from specialist.models.checkpoint import Vocabulary
from specialist.text.pieces import ByteFallback, ByteLevel, Metaspace, Pieces


class Table:
    """One for a vocabulary; threads may share it."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """`vocab_size` is the model's: it may have rows that stand for no word."""
        pieces = Pieces(vocabulary)
        self.vocab_size = vocab_size
        self.stop_ids = vocabulary.eos_ids
        self.drops_space = _drops_space(pieces)
        """One space before an answer is not part of its text."""
        ends = sorted(vocabulary.eos_ids) or [vocab_size]
        words = _Words(vocabulary, pieces, vocab_size, ends)
        self.first = _first(pieces, len(words.tokens))
        """One bit a token, as in the library's masks: those that may begin an answer; None for all."""
        self.but_stops = _packed(token not in vocabulary.eos_ids for token in range(len(words.tokens)))
        """The same: all but stop tokens."""
        self.tokenizer = LLTokenizer(words, n_vocab=len(words.tokens), eos_token=ends)
        words.tokenizer = self.tokenizer


class _Words(TokenizerWrapper):
    """What the library asks of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary, pieces: Pieces, vocab_size: int, ends: list[int]) -> None:
        control = {token_id: text for text, token_id in vocabulary.control_ids.items()}
        self.is_tokenizer_wrapper = True
        self.tokens = [_bytes_of(pieces[token_id], control.get(token_id)) for token_id in range(vocab_size)]
        if ends == [vocab_size]:  # a model that never ends by itself; the library wants a token for it
            self.tokens.append(b"<end>")
        self.special_token_ids = sorted({*(token_id for token_id in control if token_id < vocab_size), *ends})
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self.tokenizer: LLTokenizer | None = None
        self._encoder = vocabulary.tokenizer if isinstance(pieces.spelling, ByteLevel) else None
        self._control = frozenset(control)

    def __call__(self, text: str | bytes) -> list[int]:
        """How the model would write what the grammar leaves no choice about. Where its own tokenizer would put spaces
        before a text, or take a text for a control token, the longest tokens that fit."""
        text = text.decode() if isinstance(text, bytes) else text
        if self._encoder is not None:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
            if self._control.isdisjoint(ids):
                return ids
        if self.tokenizer is None:
            raise RuntimeError("asked for tokens before there is a table")
        return self.tokenizer.greedy_tokenize(text)


def _bytes_of(piece: bytes | str | int | None, control: str | None) -> bytes:
    if control is not None:
        return control.encode()
    if isinstance(piece, int):
        return bytes([piece])
    return _spaced(piece).encode() if isinstance(piece, str) else piece or b""


def _spaced(piece: str) -> str:
    return piece.replace("\u2581", " ")


def _drops_space(pieces: Pieces) -> bool:
    match pieces.spelling:
        case ByteLevel():
            return False
        case ByteFallback(num_dropped):
            return num_dropped > 0
        case Metaspace(_, drops_first):
            return drops_first


def _first(pieces: Pieces, num_tokens: int) -> NDArray[np.uint8] | None:
    """Some vocabularies drop all spaces of the first token; those that have more than the one before are no use."""
    if not (isinstance(pieces.spelling, Metaspace) and pieces.spelling.drops_first):
        return None
    return _packed(_may_begin(pieces, num_tokens, pieces.spelling.replacement))


def _packed(kept: Iterable[bool]) -> NDArray[np.uint8]:
    """In whole words of 32 bits. The library's masks may have one more, with nothing in it."""
    bits = np.fromiter(kept, np.bool_)
    return np.packbits(np.pad(bits, (0, -len(bits) % 32)), bitorder="little")


def _may_begin(pieces: Pieces, vocab_size: int, replacement: str) -> Iterator[bool]:
    for token_id in range(vocab_size):
        piece = pieces[token_id]
        yield not isinstance(piece, str) or replacement not in piece.removeprefix(replacement)
