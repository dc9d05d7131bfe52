"""A vocabulary as the grammar library reads it."""

from collections.abc import Iterable

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from specialist.models.checkpoint import Vocabulary
from specialist.text.tokenization import SPACE, ByteLevel, Metaspace, TokenPieces


class GrammarVocabulary:
    """A vocabulary converted for the grammar library. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """`vocab_size` is that of the model, which may have rows without a token."""
        pieces = TokenPieces(vocabulary)
        self.vocab_size = vocab_size
        self.stop_ids = vocabulary.eos_ids
        self.drops_space = pieces.spelling.drops_space  # whether one space before an answer is not part of its text
        ends = sorted(vocabulary.eos_ids) or [vocab_size]
        wrapper = _TokenizerAdapter(vocabulary, pieces, vocab_size, ends)
        # One bit per token, as in the library's masks: tokens that may begin an answer, None if all may; all tokens
        # but stop tokens.
        self.first = _first_tokens(pieces, len(wrapper.tokens))
        self.but_stops = _pack_bits(token not in vocabulary.eos_ids for token in range(len(wrapper.tokens)))
        self.tokenizer = LLTokenizer(wrapper, n_vocab=len(wrapper.tokens), eos_token=ends)
        wrapper.tokenizer = self.tokenizer


class _TokenizerAdapter(TokenizerWrapper):
    def __init__(self, vocabulary: Vocabulary, pieces: TokenPieces, vocab_size: int, ends: list[int]) -> None:
        control = {token_id: text for text, token_id in vocabulary.control_ids.items()}
        self.is_tokenizer_wrapper = True
        self.tokens = [_token_bytes(pieces[token_id], control.get(token_id)) for token_id in range(vocab_size)]
        if ends == [vocab_size]:  # the model never ends an answer, but the library needs an end token
            self.tokens.append(b"<end>")
        self.special_token_ids = sorted({*(token_id for token_id in control if token_id < vocab_size), *ends})
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self.tokenizer: LLTokenizer | None = None
        self._encoder = vocabulary.tokenizer if isinstance(pieces.spelling, ByteLevel) else None
        self._control = frozenset(control)

    def __call__(self, text: str | bytes) -> list[int]:
        """Return tokens for text that the grammar forces. The model's own tokenizer produces them, unless it would add
        spaces or turn the text into a control token; then the longest matching tokens are used."""
        text = text.decode() if isinstance(text, bytes) else text
        if self._encoder is not None:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
            if self._control.isdisjoint(ids):
                return ids
        if self.tokenizer is None:
            raise RuntimeError("the vocabulary is not complete yet")
        return self.tokenizer.greedy_tokenize(text)


def _token_bytes(piece: bytes | str | int | None, control: str | None) -> bytes:
    if control is not None:
        return control.encode()
    if isinstance(piece, int):
        return bytes([piece])
    return piece.replace(SPACE, " ").encode() if isinstance(piece, str) else piece or b""


def _first_tokens(pieces: TokenPieces, num_tokens: int) -> NDArray[np.uint8] | None:
    """Return the allowed first tokens. If the vocabulary drops all spaces in them, only a leading one is allowed."""
    spelling = pieces.spelling
    if not (isinstance(spelling, Metaspace) and spelling.drops_space):
        return None
    texts = (piece if isinstance(piece, str) else "" for piece in (pieces[token_id] for token_id in range(num_tokens)))
    return _pack_bits(spelling.replacement not in text.removeprefix(spelling.replacement) for text in texts)


def _pack_bits(kept: Iterable[bool]) -> NDArray[np.uint8]:
    """Pack bits into words of 32 bits. The library's masks may have one more, empty word."""
    bits = np.fromiter(kept, np.bool_)
    return np.packbits(np.pad(bits, (0, -len(bits) % 32)), bitorder="little")
