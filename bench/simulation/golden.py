"""The one right answer to a request, computed without an ensemble."""

from functools import lru_cache

from bench.simulation.adapters import digest_of_adapter
from bench.simulation.replica import MODEL, REVISION
from bench.simulation.script import Asked
from bench.simulation.words import SimWords
from octet.identity import Lane
from specialist.engines.sim import SimModel
from specialist.request import Request
from specialist.text.message import Message

_WORDS = SimWords()


def golden(ask: Asked, specialist: str, context: int, model: SimModel = MODEL) -> tuple[int, ...]:
    """What this specialist says to it, with the adapters that were asked for."""
    return _answer(ask.text, specialist, ask.adapters, ask.max_tokens, ask.seed, ask.exact, context, model)


@lru_cache(maxsize=4096)
def _answer(
    text: str,
    specialist: str,
    adapters: tuple[str, ...],
    max_tokens: int,
    seed: int,
    exact: bool,
    context: int,
    model: SimModel,
) -> tuple[int, ...]:
    prompt = _WORDS.render([Message("user", text)])
    lane = Lane(specialist, REVISION, tuple(digest_of_adapter(name) for name in adapters))
    stop_ids = frozenset[int]() if exact else _WORDS.stop_ids
    request = Request("golden", lane, prompt, min(max_tokens, context - len(prompt)), stop_ids=stop_ids, seed=seed)
    return model.answer(request)
