"""Structured answers: grammars compiled for a vocabulary, and guides that follow one answer through its grammar."""

import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from octet.rpc.checks import InvalidValue, parse_json_object
from specialist.models.checkpoint import Vocabulary
from specialist.scheduling.sequence import GuideExhausted
from specialist.text.prompt import Structure
from specialist.text.tokenization import SPACE, ByteLevel, Metaspace, TokenPieces

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_JSON_OPTIONS = {  # only the whitespace of ordinary JSON: a model that may write endless whitespace does so
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n[ ]{0,32}",
    "coerce_one_of": False,
    "lenient": False,
}
_OPTIONAL_SPACE = '" "? '
_MAX_REASON = 160
_NOISE = re.compile(r"^at \d+\(\d+\): |failed to compile JSON schema: |<non-verbose/>|\. Enable 'coerce_one_of' .*")
# Error names that the library gives instead of a sentence. All other names mean that no token can follow.
_LIBRARY_REASONS = dict.fromkeys(("LexerTooComplex", "ParserTooComplex"), "one that is too costly to follow")


def _parser_limits() -> "LLParserLimits":
    """Return limits that allow a few milliseconds per token and a few megabytes per grammar."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=5_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=10_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    depth: int = 64  # maximum nesting of brackets in a schema
    seconds: float = 1.0  # time to compile a grammar
    compiling: int = 16  # grammars that may be compiling or queued at the same time
    kept: int = 64  # grammars in the cache
    kept_bytes: int = 1 << 20  # total bytes of the structures that the cached grammars were compiled from


class GrammarVocabulary:
    """A vocabulary converted for the grammar library. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """`vocab_size` is the number of the model's embedding rows, some of which may have no token."""
        from llguidance import LLTokenizer, TokenizerWrapper

        pieces = TokenPieces(vocabulary)
        self.vocab_size = vocab_size
        self.stop_ids = vocabulary.eos_ids
        self.drops_space = pieces.spelling.drops_space  # whether one space before an answer is not part of its text
        ends = sorted(vocabulary.eos_ids) or [vocab_size]
        wrapper = _TokenizerAdapter(vocabulary, pieces, vocab_size, ends)
        # One bit per token, as in the library's masks: `first` has tokens that may begin an answer, None if all may;
        # `but_stops` has all tokens except stop tokens.
        self.first = _first_tokens(pieces, len(wrapper.tokens))
        self.but_stops = _pack_bits(token not in vocabulary.eos_ids for token in range(len(wrapper.tokens)))
        self.tokenizer = LLTokenizer(cast(TokenizerWrapper, wrapper), n_vocab=len(wrapper.tokens), eos_token=ends)
        wrapper.tokenizer = self.tokenizer


class _TokenizerAdapter:
    """Stands in for the library's TokenizerWrapper, with the same attributes."""

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
    """Return a mask of the tokens that may begin an answer, or None if all may. If the vocabulary drops all spaces of
    the first token, a token with a space after its first character is excluded."""
    spelling = pieces.spelling
    if not (isinstance(spelling, Metaspace) and spelling.drops_space):
        return None
    texts = (piece if isinstance(piece, str) else "" for piece in (pieces[token_id] for token_id in range(num_tokens)))
    return _pack_bits(spelling.replacement not in text.removeprefix(spelling.replacement) for text in texts)


def _pack_bits(kept: Iterable[bool]) -> NDArray[np.uint8]:
    """Pack bits into words of 32 bits. A mask of the library may have one more word, which is empty."""
    bits = np.fromiter(kept, np.bool_)
    return np.packbits(np.pad(bits, (0, -len(bits) % 32)), bitorder="little")


class Grammar:
    """A structure compiled for one vocabulary. Compiling is slow; each request then only copies the matcher."""

    def __init__(self, structure: Structure, vocabulary: GrammarVocabulary, limits: GrammarLimits) -> None:
        """Raises InvalidValue for an invalid structure, or for one that no text can satisfy."""
        from llguidance import LLMatcher

        self.vocabulary = vocabulary
        self.num_bytes = structure.num_bytes
        rules = _lark_rules(structure, vocabulary, limits)
        self._matcher = LLMatcher(vocabulary.tokenizer, rules, log_level=0, limits=_parser_limits())
        probe = self._matcher.deep_copy()
        if not probe.is_error():
            probe.compute_bitmask()
        if probe.is_error():
            raise InvalidValue(_requirement(structure), matcher_error(probe))

    def matcher(self) -> "LLMatcher":
        return self._matcher.deep_copy()


def matcher_error(matcher: "LLMatcher") -> str:
    """Return in one line why the library refused the structure. The grammar is left out: callers have never seen it."""
    lines = [line.strip() for line in matcher.get_error().split("<state>")[0].splitlines() if line.strip()]
    reasons = (line.removeprefix("error: ") for line in lines if line.startswith("error: "))
    reason = _NOISE.sub("", next(reasons, lines[0] if lines else "")).strip()
    return reason[:_MAX_REASON] if " " in reason else _LIBRARY_REASONS.get(reason, "one that nothing matches")


def _requirement(structure: Structure) -> str:
    if structure.kind == "regex":
        return "a regular expression that some text matches, not too large, without look-around or backreferences"
    if structure.kind == "choice":
        return "a set of choices that is not too large"
    schema = "a JSON Schema that some value satisfies, not too large, with supported keywords only"
    return f"functions that each have {schema}" if structure.kind == "calls" else schema


def _lark_rules(structure: Structure, vocabulary: GrammarVocabulary, limits: GrammarLimits) -> str:
    """Return Lark rules. If the vocabulary drops an answer's first space, they require it; for JSON, they allow it."""
    if structure.kind != "calls":
        return "start: {}\n{}".format(*_answer_rules(structure, vocabulary, limits))
    calls = f"{_OPTIONAL_SPACE if vocabulary.drops_space else ''}calls"
    if structure.answer is None:
        return f"start: {calls}\n{structure.text}"
    start, rules = _answer_rules(structure.answer, vocabulary, limits)
    return f"start: {calls} | {start}\n{structure.text}\n{rules}"


def _answer_rules(structure: Structure, vocabulary: GrammarVocabulary, limits: GrammarLimits) -> tuple[str, str]:
    """Return what the start rule must be, and the rules that it needs."""
    space = '" " ' if vocabulary.drops_space else ""
    if structure.kind == "regex":
        from llguidance import regex_to_lark

        return "ANSWER", f"ANSWER: {space}/{regex_to_lark(structure.text, 'dw')}/"
    if structure.kind == "choice":
        choices = (json.dumps(choice, ensure_ascii=False) for choice in structure.choices)
        return "ANSWER", f"ANSWER: {space}({' | '.join(choices)})"
    is_object = structure.kind == "json_object"
    rule = _json_rule({"type": "object"}) if is_object else json_schema_rule(structure.text, limits.depth)
    return f"{_OPTIONAL_SPACE if vocabulary.drops_space else ''}answer", f"answer: {rule}"


def json_schema_rule(text: str, depth: int) -> str:
    """Return a schema as the right-hand side of a grammar rule. Raises InvalidValue for an invalid schema."""
    return _json_rule(parse_json_object(text, depth))


def _json_rule(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON_OPTIONS})}"


class GrammarCache:
    """Compiles the grammars of one replica on first use, and keeps the most recent ones. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, limits: GrammarLimits | None = None) -> None:
        self.limits = limits or GrammarLimits()
        self._model_vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._vocabulary: GrammarVocabulary | None = None
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        self._vocabulary_lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, structure: Structure) -> Grammar | None:
        key = structure.digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def compile(self, structure: Structure) -> Grammar:
        """Return the grammar, from the cache or newly compiled. Compiling holds no lock. Raises as `Grammar` does."""
        grammar = self.get(structure) or Grammar(structure, self.vocabulary(), self.limits)
        key = structure.digest()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = grammar
                self._num_bytes += grammar.num_bytes
            while len(self._kept) > self.limits.kept or self._num_bytes > self.limits.kept_bytes:
                self._num_bytes -= self._kept.popitem(last=False)[1].num_bytes
        return grammar

    def vocabulary(self) -> GrammarVocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = GrammarVocabulary(self._model_vocabulary, self._vocab_size)
            return self._vocabulary


class Guide:
    """Follows one answer through its grammar. Each call passes all tokens so far. The guide advances over new tokens
    and rolls back those that have changed, so that preemptions, rejected drafts and repeated steps do no harm."""

    def __init__(self, grammar: Grammar, *, may_stop: bool = True) -> None:
        """With `may_stop`, stop tokens are allowed where the grammar can end."""
        self._vocabulary = grammar.vocabulary
        self._may_stop = may_stop
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._followed = array("I")

    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        known = array("I", generated)
        if not self._follow(known):
            raise self._exhausted(f"token {len(self._followed)} of the answer does not fit its structure")
        if guessed and not self._follow(known + array("I", guessed)):
            return None
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise self._exhausted("the answer cannot continue within its structure")
        return self._restrict(mask)

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        if token in self._vocabulary.stop_ids or not self._follow(array("I", generated) + array("I", guessed)):
            return False
        if self._vocabulary.first is not None and not self._followed:
            return False
        forced = self._matcher.compute_ff_tokens()  # the mask allows only one tokenization of forced text
        fits = forced[0] == token if forced else self._matcher.validate_tokens([token]) == 1
        return fits and not self._matcher.is_error()

    def ended(self, generated: Sequence[int], fresh: Sequence[int]) -> bool:
        follows = self._follow(array("I", generated) + array("I", fresh))
        return follows and self._matcher.is_stopped() and not self._matcher.is_error()

    def _follow(self, tokens: "array[int]") -> bool:
        self._roll_back(_num_common(self._followed, tokens))
        rest = tokens[len(self._followed) :].tolist()
        if not rest:
            return True
        textual = list(takewhile(lambda token: token not in self._vocabulary.stop_ids, rest))
        count = self._matcher.try_consume_tokens(textual)
        self._followed.extend(textual[:count])
        return count == len(rest)

    def _roll_back(self, num_tokens: int) -> None:
        excess = len(self._followed) - num_tokens
        if self._matcher.is_error() or (excess and not self._matcher.rollback(excess)):
            self._restart()
        else:
            del self._followed[num_tokens:]

    def _exhausted(self, message: str) -> GuideExhausted:
        if not self._matcher.is_error():
            return GuideExhausted(message)
        error = matcher_error(self._matcher)
        self._restart()
        return GuideExhausted(f"{message}: {error}")

    def _restart(self) -> None:
        self._matcher = self._grammar.matcher()
        self._followed = array("I")

    def _restrict(self, mask: bytes) -> bytes:
        first = self._vocabulary.first if not self._followed else None
        stops = None if self._may_stop else self._vocabulary.but_stops
        for kept in (first, stops):
            if kept is not None:
                mask = (np.frombuffer(mask, np.uint8, len(kept)) & kept).tobytes()
        return mask


def _num_common(one: "array[int]", other: "array[int]") -> int:
    count = min(len(one), len(other))
    if one[:count].tobytes() == other[:count].tobytes():
        return count
    return next(i for i in range(count) if one[i] != other[i])
