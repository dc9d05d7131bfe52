"""Tokens from text and text from tokens, for one vocabulary, and stop strings. Text never becomes a control token."""

import json
import re
import secrets
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from specialist.models.checkpoint import Vocabulary
from specialist.text.prompt import ControlText, NotText, TextTooLong


class VocabularyRefused(ValueError):
    """This kind of tokenizer is not supported."""


SPACE = "\u2581"
_FALLBACK = re.compile(r"<0x(\+[0-9A-Fa-f]|[0-9A-Fa-f]{2})>")


# Byte-level vocabularies write visible characters as themselves, other bytes as characters from U+0100 on.
_VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = [byte for byte in range(256) if byte not in _VISIBLE]
BYTE_OF = {chr(byte): byte for byte in _VISIBLE} | {chr(0x100 + index): byte for index, byte in enumerate(_HIDDEN)}
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


class ByteLevel:
    """Every token is a run of bytes; an answer is their concatenation, decoded as UTF-8."""

    drops_space = False  # whether one space before an answer is not part of its text

    def piece(self, token: str) -> bytes:
        try:
            return bytes([BYTE_OF[character] for character in token])
        except KeyError:  # added tokens are written literally
            return token.encode()

    def writer(self) -> "_ByteWriter":
        return _ByteWriter()


class ByteFallback(NamedTuple):
    """A token is text, or one byte of a character without a token of its own."""

    num_dropped: int  # spaces that the tokenizer adds before text; they are removed from the beginning of an answer

    @property
    def drops_space(self) -> bool:
        return self.num_dropped > 0

    def piece(self, token: str) -> str | int:
        if fallback := _FALLBACK.fullmatch(token):
            return int(fallback[1], 16)
        return token.replace(SPACE, " ")

    def writer(self) -> "_FallbackWriter":
        return _FallbackWriter(self.num_dropped)


class Metaspace(NamedTuple):
    """A token is text. With `drops_space`, an answer's first token loses its spaces."""

    replacement: str
    drops_space: bool

    def piece(self, token: str) -> str:
        return token

    def writer(self) -> "_MetaspaceWriter":
        return _MetaspaceWriter(self.replacement, self.drops_space)


def _parse_spelling(decoder: dict[str, Any] | None) -> ByteLevel | ByteFallback | Metaspace:
    unknown: object = decoder
    match decoder:
        case {"type": "ByteLevel"} | {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}:
            return ByteLevel()
        case {"type": "Metaspace", "replacement": str(replacement), "prepend_scheme": scheme}:
            return Metaspace(replacement, scheme != "never")
        case {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, *rest]} if (
            replace == {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
        ):
            match rest:
                case []:
                    return ByteFallback(0)
                case [{"type": "Strip", "content": " ", "start": int(start), "stop": 0}]:
                    return ByteFallback(start)
            unknown = rest
    raise VocabularyRefused(
        f"the tokenizer's decoder is {json.dumps(unknown)[:200]}; "
        "only ByteLevel, Metaspace and Replace + ByteFallback + Fuse (+ Strip) are supported"
    )


class TokenPieces(dict[int, bytes | str | int | None]):
    """Maps each token to what it writes; None for a control token or an unused id, which write nothing. Filled on first
    use. Thread-safe; one per vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises VocabularyRefused for a decoder whose output cannot be streamed exactly."""
        self.spelling = _parse_spelling(json.loads(vocabulary.tokenizer.to_str())["decoder"])
        self._tokenizer = vocabulary.tokenizer
        super().__init__(dict.fromkeys(vocabulary.control_ids.values()))

    def __missing__(self, token_id: int) -> bytes | str | int | None:
        token = self._tokenizer.id_to_token(token_id)
        piece = self[token_id] = None if token is None else self.spelling.piece(token)
        return piece


class Encoder:
    """Converts text to tokens. Thread-safe; one per vocabulary. Its tokenizer does not recognise control tokens by
    their text. Instead, each control token has a secret alias, which only `encode_marked` turns into the token. Chat
    templates write aliases; users cannot."""

    def __init__(self, vocabulary: Vocabulary, max_bytes: int = 1 << 20) -> None:
        self.max_bytes = max_bytes
        secret = secrets.token_hex(16)
        # the text of each control token and its alias: a random name between noncharacters
        self.aliases = {text: f"\ufdd0{secret}:{number}\ufdd1" for text, number in vocabulary.control_ids.items()}
        self._bos = () if vocabulary.bos_id is None else (vocabulary.bos_id,)
        self._control = frozenset(vocabulary.control_ids.values())
        self._tokenizer, self._id_of_alias = _without_control_text(vocabulary, self.aliases)

    def encode(self, text: str, field: str = "prompt") -> tuple[int, ...]:
        """Return the tokens. Raises TextTooLong, NotText or ControlText for invalid text, naming the field."""
        check_text(text, self.max_bytes, field)
        return self.encode_marked(text, field)

    def prompt(self, text: str, field: str = "prompt") -> tuple[int, ...]:
        """Do the same as `encode`, and put the model's beginning-of-text token in front, if it has one."""
        return self._bos + self.encode(text, field)

    def encode_marked(self, text: str, field: str) -> tuple[int, ...]:
        """Do the same as `encode`, but without `check_text`, and with aliases turned into control tokens."""
        # a batch of one: only batches release the interpreter lock
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if not self._control.isdisjoint(ids):
            ids = list(self._without_control(text, field))
        if self._id_of_alias.keys().isdisjoint(ids):
            return tuple(ids)
        return tuple([self._id_of_alias.get(token_id, token_id) for token_id in ids])

    def _without_control(self, text: str, field: str) -> Iterator[int]:
        """Yield tokens; text that would merge into a control token is encoded byte by byte."""
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._control:
                yield from self._bytewise(text[start:stop], field)
            else:
                yield token_id

    def _bytewise(self, text: str, field: str) -> Iterator[int]:
        for byte in text.encode():
            for name in (CHARACTER_OF[byte], f"<0x{byte:02X}>"):
                token_id = self._tokenizer.token_to_id(name)
                if token_id is not None and token_id not in self._control:
                    yield token_id
                    break
            else:
                raise ControlText(field, text)


def check_text(text: str, max_bytes: int, field: str) -> int:
    """Return the number of bytes. Raises TextTooLong or NotText for invalid text."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        if len(text) > max_bytes:
            raise TextTooLong(field, max_bytes, len(text.encode(errors="surrogatepass"))) from error
        raise NotText(field, error.start) from error
    if size > max_bytes:
        raise TextTooLong(field, max_bytes, size)
    return size


def _without_control_text(vocabulary: Vocabulary, aliases: Mapping[str, str]) -> tuple[Tokenizer, dict[int, int]]:
    described = json.loads(vocabulary.tokenizer.to_str())
    words = described["model"]["vocab"]
    if not isinstance(words, dict):
        raise VocabularyRefused(f"the tokenizer's model is {described['model']['type']}; only BPE is supported")
    unused = 1 + max([*words.values(), *vocabulary.control_ids.values()])
    ids = {alias: unused + index for index, alias in enumerate(aliases.values())}
    words.update(ids)  # an added token gets the id of its text from here; otherwise it might get an id that is in use
    for added in described["added_tokens"]:
        added["special"] = added["special"] or added["content"] in aliases
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.encode_special_tokens = True
    tokenizer.add_tokens([AddedToken(alias, normalized=False, special=False) for alias in ids])
    return tokenizer, {ids[alias]: vocabulary.control_ids[text] for text, alias in aliases.items()}


class Detokenizer:
    """Decodes one answer. The strings returned by `push` and `finish`, joined, equal the text of all tokens decoded
    together. Only whole characters are returned. Control tokens write nothing unless they are visible."""

    def __init__(self, pieces: TokenPieces, visible: Mapping[int, str] | None = None) -> None:
        """`visible` gives the spelling of control tokens that are part of the text."""
        self._pieces = pieces
        self._visible = {token: pieces.spelling.piece(text) for token, text in (visible or {}).items()}
        self._writer = pieces.spelling.writer()

    def push(self, tokens: Sequence[int]) -> str:
        pieces, visible = self._pieces, self._visible
        if visible:
            found = [visible[token] if token in visible else pieces[token] for token in tokens]
        else:
            found = [pieces[token] for token in tokens]
        return self._writer.write([piece for piece in found if piece is not None])

    def finish(self) -> str:
        return self._writer.finish()

    def spell(self, token: int) -> bytes:
        """Return the bytes that a token writes inside an answer, perhaps only part of a character."""
        piece, spelling = self._pieces[token], self._pieces.spelling
        if isinstance(piece, int):
            return bytes([piece])
        if isinstance(piece, str):
            return (piece.replace(spelling.replacement, " ") if isinstance(spelling, Metaspace) else piece).encode()
        return piece or b""


class _ByteWriter:
    """Joins the pieces of one answer. Like the other writers, it returns only whole characters."""

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("replace").decode

    def write(self, pieces: Sequence[bytes | str | int]) -> str:
        return self._decode(b"".join(pieces))  # type: ignore[arg-type]  # byte-level pieces are bytes

    def finish(self) -> str:
        return self._decode(b"", True)


class _FallbackWriter:
    """Joins text and runs of byte tokens. If a byte of a run is invalid, each byte of the run becomes U+FFFD."""

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
            self._num_to_drop = self._num_to_drop - 1 if text[0] == " " else 0
            text = text.removeprefix(" ")
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


class StopStrings:
    """Passes on an answer's text up to the first stop string, regardless of how the text is split. The first stop
    string is the one that begins earliest, so a match is held back while an earlier one may still be completed. Takes
    time linear in the length of the text."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError(f"stop[{list(stops).index('')}] is empty")
        self.stop_string: str | None = None  # the first stop string, once it is certain
        self._automaton = _Automaton(stops) if stops else None
        self._node = 0
        self._held = ""
        self._match: tuple[int, int] | None = None  # start of the earliest match in the held text, and its length

    def push(self, text: str) -> tuple[str, bool]:
        """Return text that is safe to send, and whether a stop string was found. Text after it is dropped."""
        if self._automaton is None:
            return text, False
        if self.stop_string is not None:
            return "", True
        scanned, text = len(self._held), self._held + text
        if self._scan(self._automaton, text, scanned):
            self._held = text
            return self.finish(), True
        safe = len(text) - self._automaton.nodes[self._node].depth
        self._held = text[safe:]
        if self._match is not None:
            self._match = (self._match[0] - safe, self._match[1])
        return text[:safe], False

    def finish(self) -> str:
        """Return the text that was held back, up to a stop string in it. Call this after the last `push`."""
        held, self._held = self._held, ""
        if self._match is None or self.stop_string is not None:
            return held
        start, length = self._match
        self.stop_string = held[start : start + length]
        return held[:start]

    def _scan(self, automaton: "_Automaton", text: str, position: int) -> bool:
        """Scan from `position`. Return True once a stop string is found and no earlier one can still be completed."""
        while position < len(text):
            if self._node == 0:
                first = automaton.first_characters.search(text, position)
                if first is None:
                    return False
                position = first.start()
            self._node = automaton.step(self._node, text[position])
            position += 1
            if length := automaton.matched[self._node]:
                start = position - length
                if self._match is None or (start, -length) < (self._match[0], -self._match[1]):
                    self._match = (start, length)
            if self._match is not None and position - automaton.nodes[self._node].depth >= self._match[0]:
                return True
        return False


class _Node(NamedTuple):
    depth: int
    children: dict[str, int]


class _Automaton:
    """Aho-Corasick: after each character the state is the longest prefix of a stop string that the text ends with."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.nodes = [_Node(0, {})]
        self.suffix = [0]  # the longest proper suffix of a node that is also a node
        self.matched = [0]  # the length of the longest stop string that a node ends with, or 0
        for stop in stops:
            self._add(stop)
        self._link()
        starts = "".join(re.escape(first) for first in self.nodes[0].children)
        self.first_characters = re.compile(f"[{starts}]")

    def _add(self, stop: str) -> None:
        node = 0
        for depth, character in enumerate(stop, 1):
            child = self.nodes[node].children.setdefault(character, len(self.nodes))
            if child == len(self.nodes):
                self.nodes.append(_Node(depth, {}))
                self.suffix.append(0)
                self.matched.append(0)
            node = child
        self.matched[node] = len(stop)

    def _link(self) -> None:
        """Link nodes breadth first, so that the suffix of a node is linked before the node."""
        queue = deque(self.nodes[0].children.values())
        while queue:
            parent = queue.popleft()
            for character, child in self.nodes[parent].children.items():
                self.suffix[child] = self.step(self.suffix[parent], character)
                self.matched[child] = self.matched[child] or self.matched[self.suffix[child]]
                queue.append(child)

    def step(self, node: int, character: str) -> int:
        while character not in self.nodes[node].children:
            if node == 0:
                return 0
            node = self.suffix[node]
        return self.nodes[node].children[character]
