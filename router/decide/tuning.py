"""Generation parameters where the caller is silent: by the kind of task."""

from collections.abc import Sequence

from octet.config.ensemble import Ensemble, SpecialistConfig, TaskConfig
from octet.v1 import inference_pb2 as wire
from router.reception.ask import Ask

DEFAULT_TASK = "default"
_LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789'"
_TABLE = bytes(byte if byte in _LETTERS else 0x20 for byte in bytes(range(256)).lower())
_HEAD, _TAIL = 1024, 512
"""Characters that are read: what is wanted stands at the beginning or at the end."""
_PHRASES = {
    "json_parsing": "as json, in json, into json, to json, valid json, json object, json schema",
    "review": "review, critique, feedback on, what do you think of",
    "debug": "debug, crash, crashes, crashed, segfault, segfaults, segmentation fault, core dumped, sigsegv, sigabrt, "
    "data race, deadlock, deadlocks, memory leak, fix this, what's wrong, what is wrong, doesn't work, does not work, "
    "doesn't compile, does not compile, undefined reference",
    "code_generation": "write a, write an, write me, write the, implement, generate, create a, complete the, "
    "complete this, refactor, rewrite, port this, add a",
    "creative_writing": "poem, haiku, limerick, short story, a story, song, creative, essay",
}
"""In the order they are looked for: whoever wants a review of what crashes wants a review."""
_ORDER = {task: place for place, task in enumerate(_PHRASES)}


def _by_longest_word() -> dict[bytes, tuple[tuple[str, bytes], ...]]:
    """Task and phrase by the one word that few texts have: only phrases whose word was said are looked for."""
    found: dict[bytes, list[tuple[str, bytes]]] = {}
    for task, phrases in _PHRASES.items():
        for phrase in phrases.encode().split(b", "):
            found.setdefault(max(phrase.split(), key=len), []).append((task, b" %b " % phrase))
    return {word: tuple(each) for word, each in found.items()}


_BY_WORD = _by_longest_word()


def task_of(ask: Ask, ensemble: Ensemble) -> TaskConfig:
    """The declared intent's own, else what the text asks for, of those the ensemble has."""
    declared = next((intent.task for intent in ensemble.intents if intent.name == ask.intent), None)
    return _named(ensemble.tasks, declared or _wanted(ask.text, ensemble.tasks))


def _named(tasks: Sequence[TaskConfig], name: str) -> TaskConfig:
    return next((task for task in tasks if task.name == name), None) or TaskConfig(DEFAULT_TASK)


def _wanted(text: str, tasks: Sequence[TaskConfig]) -> str:
    there = {task.name for task in tasks}
    sample = text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}\n{text[-_TAIL:]}"
    words = sample.encode("utf-8", "replace").translate(_TABLE).split()
    said = b" %b " % b" ".join(words)
    likely = (each for word in _BY_WORD.keys() & words for each in _BY_WORD[word])
    found = (task for task, phrase in likely if task in there and phrase in said)
    return min(found, key=lambda task: _ORDER[task], default=DEFAULT_TASK)


def sampling_for(ask: Ask, task: TaskConfig) -> wire.Sampling:
    """The caller's, with the task's where nothing was said. Temperature 0 stays what it is: the likeliest token."""
    sampling = wire.Sampling()
    if ask.sampling is not None:
        sampling.CopyFrom(ask.sampling)
    for field in ("temperature", "top_p", "repetition_penalty"):
        if not sampling.HasField(field):
            setattr(sampling, field, getattr(task, field))
    return sampling


def max_tokens_for(ask: Ask, task: TaskConfig, specialist: SpecialistConfig | None) -> int:
    """The caller's; else the shorter of the task's and the specialist's, but never less than the caller's least."""
    if ask.max_tokens is not None:
        return ask.max_tokens
    longest = task.max_tokens if specialist is None else min(task.max_tokens, specialist.max_tokens)
    return max(longest, ask.min_tokens or 0)


def wanted_adapters(ask: Ask, specialist: SpecialistConfig | None) -> tuple[str, ...]:
    """The caller's, else the specialist's own; in their order."""
    return () if specialist is None else ask.adapters or specialist.use_adapters


def adapters_for(ask: Ask, specialist: SpecialistConfig | None) -> tuple[str, ...]:
    """As many of the wanted as the caller allows."""
    return at_most(wanted_adapters(ask, specialist), ask.max_experts)


def at_most(adapters: tuple[str, ...], max_experts: int | None) -> tuple[str, ...]:
    """The specialist itself is the first expert."""
    return adapters if max_experts is None else adapters[: max_experts - 1]
