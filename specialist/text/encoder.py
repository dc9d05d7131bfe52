"""Tokens out of text. Whatever the text says, it is only text."""

import json
import secrets
from collections.abc import Iterator, Mapping

from tokenizers import AddedToken, Tokenizer

from specialist.models.checkpoint import Vocabulary
from specialist.text.errors import ControlText, NotText, TextTooLong, VocabularyRefused
from specialist.text.pieces import CHARACTER_OF

MAX_TEXT_BYTES = 1 << 20


class Encoder:
    """Thread-safe. One for a vocabulary.

    It works on a tokenizer of its own that knows no control token by its text. Each control token has a secret
    alias instead, which only `marked` turns into the token; a chat template writes aliases, a user cannot.
    """

    def __init__(self, vocabulary: Vocabulary, max_bytes: int = MAX_TEXT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.aliases = _aliases(vocabulary.control_ids)
        self._bos = () if vocabulary.bos_id is None else (vocabulary.bos_id,)
        self._control = frozenset(vocabulary.control_ids.values())
        self._tokenizer, self._id_of_alias = _without_control_text(vocabulary, self.aliases)

    def encode(self, text: str, field: str = "prompt") -> tuple[int, ...]:
        """Raises TextTooLong, NotText and ControlText, each naming the field."""
        check_text(text, self.max_bytes, field)
        return self._ids(text, field)

    def prompt(self, text: str, field: str = "prompt") -> tuple[int, ...]:
        """The text, after the token that begins a text, if the model has one."""
        return self._bos + self.encode(text, field)

    def marked(self, text: str, field: str) -> tuple[int, ...]:
        """As `encode`, without its limit, and with every alias made its control token."""
        return self._ids(text, field)

    def _ids(self, text: str, field: str) -> tuple[int, ...]:
        # in a batch of one, since only batches leave other threads the interpreter meanwhile
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if not self._control.isdisjoint(ids):
            ids = list(self._without_control(text, field))
        if self._id_of_alias.keys().isdisjoint(ids):
            return tuple(ids)
        return tuple([self._id_of_alias.get(token_id, token_id) for token_id in ids])

    def _without_control(self, text: str, field: str) -> Iterator[int]:
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._control:
                yield from self._spelled(text[start:stop], field)
            else:
                yield token_id

    def _spelled(self, text: str, field: str) -> Iterator[int]:
        """Byte by byte: the way to write what would otherwise have merged into a control token."""
        for byte in text.encode():
            for name in (CHARACTER_OF[byte], f"<0x{byte:02X}>"):
                token_id = self._tokenizer.token_to_id(name)
                if token_id is not None and token_id not in self._control:
                    yield token_id
                    break
            else:
                raise ControlText(field, text)


def check_text(text: str, max_bytes: int, field: str) -> int:
    """How many bytes it has. Raises TextTooLong, and NotText for what has no bytes."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        if len(text) > max_bytes:
            raise TextTooLong(field, max_bytes, len(text.encode(errors="surrogatepass"))) from error
        raise NotText(field, error.start) from error
    if size > max_bytes:
        raise TextTooLong(field, max_bytes, size)
    return size


def _aliases(control_ids: Mapping[str, int]) -> dict[str, str]:
    """Text of a control token to a name nobody can guess, between characters no text is made of."""
    secret = secrets.token_hex(16)
    return {text: f"\ufdd0{secret}:{token_id}\ufdd1" for text, token_id in control_ids.items()}


def _without_control_text(vocabulary: Vocabulary, aliases: Mapping[str, str]) -> tuple[Tokenizer, dict[int, int]]:
    """A copy of the tokenizer that knows aliases instead, and which control token each id of one stands for."""
    described = json.loads(vocabulary.tokenizer.to_str())
    words = described["model"]["vocab"]
    if not isinstance(words, dict):
        raise VocabularyRefused(f"the tokenizer's model is {described['model']['type']}; known is BPE")
    unused = 1 + max([*words.values(), *vocabulary.control_ids.values()])
    ids = {alias: unused + index for index, alias in enumerate(aliases.values())}
    words.update(ids)  # an added token has the id its text has here; else it might get one that is taken
    for added in described["added_tokens"]:
        added["special"] = added["special"] or added["content"] in aliases
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.encode_special_tokens = True
    tokenizer.add_tokens([AddedToken(alias, normalized=False, special=False) for alias in ids])
    return tokenizer, {ids[alias]: vocabulary.control_ids[text] for text, alias in aliases.items()}
