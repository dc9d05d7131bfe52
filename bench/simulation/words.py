"""Words for simulated replicas: one token a character, one for the end of a text, nothing that would have to be loaded
or started."""

from collections.abc import Mapping, Sequence

from specialist.text.errors import NoTools
from specialist.text.message import Message
from specialist.tools.calling import Calling
from specialist.tools.tool import Offer, Tool

_SAMPLED = [*map(chr, range(0x20, 0x7F)), "\n"]
END_ID = len(_SAMPLED)
NUM_SAMPLED = len(_SAMPLED) + 1
_OTHERS = 256
_TURN_ID = NUM_SAMPLED + _OTHERS
_ID_OF = {character: index for index, character in enumerate(_SAMPLED)}


class SimWords:
    stop_ids = frozenset({END_ID})
    vocab_size = _TURN_ID + 1

    def prompt(self, text: str) -> tuple[int, ...]:
        return tuple(_ID_OF.get(each, NUM_SAMPLED + ord(each) % _OTHERS) for each in text)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        ids: list[int] = []
        for message in messages:
            ids += (_TURN_ID, *self.prompt(f"{message.role}\n{message.content}"))
        return (*ids, _TURN_ID)

    def calling(self, offer: Offer) -> Calling:
        raise NoTools("a simulated replica calls none")

    def detokenizer(self, spoken: Mapping[int, str] | None = None) -> "SimDetokenizer":
        return SimDetokenizer()

    def warm_up(self) -> None:
        """Nothing is slow the first time."""

    def close(self) -> None:
        """Nothing is open."""


class SimDetokenizer:
    def push(self, tokens: Sequence[int]) -> str:
        return "".join([_SAMPLED[token] for token in tokens if token < END_ID])

    def finish(self) -> str:
        return ""

    def spell(self, token: int) -> bytes:
        return _SAMPLED[token].encode() if token < END_ID else b""
