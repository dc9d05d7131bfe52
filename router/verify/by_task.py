"""Choose the verifier of an answer by the request's structure and task, and by the kind of answer."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from octet.config.annotations import CODE_VERIFIER
from octet.config.ensemble import Ensemble, TaskConfig
from octet.v1 import specialist_pb2 as wire
from router.verify.checks import BadSchema, check_schema
from router.verify.cpp_compiler import AUTO_COMPILER
from router.verify.cpp_source import CPP_TAGS
from router.verify.fences import extract_blocks
from router.verify.prefix import verify_cut
from router.verify.verdict import Verdict, Verifier
from router.verify.verifiers import JSON_TAGS, PYTHON_TAGS, NonEmptyVerifier, TextVerifier, VerifierOpener

STRUCTURE, LABELS = "structure", "labels"  # the names of the verifiers that no configuration names
NONE, NON_EMPTY, _OBJECT = "none", "non_empty", {"type": "object"}
_COMPILED = ("cpp", "python")
_TAGS: Mapping[str, frozenset[str]] = {"cpp": CPP_TAGS, "python": PYTHON_TAGS, "json": JSON_TAGS}
_QUOTES = "\"'`*.!: \t\r\n"  # around a label
_LIKE_JSON = re.compile(r"\A\ufeff?\s*[\[{]|^[ \t]*[\[{]\s*[\"\[\]{}]", re.MULTILINE)


class Judgement(NamedTuple):
    verifier: str  # the name of the verifier that gave the verdict
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class AnswerPurpose:
    """What an answer is for. It determines how the answer is verified."""

    specialist: str
    task: str = ""
    intent: str = ""
    structure: wire.Structure | None = None


@dataclass(frozen=True)
class VerifierSet:
    """The verifiers of an ensemble. An answer is verified by the first that finds something to verify: that of the
    request's structure, of its task, of the specialist, and at last the one that any text can be judged by."""

    specialists: Mapping[str, Verifier]
    opener: VerifierOpener | None = None  # opens the verifiers of tasks; None: tasks have none
    tasks: Mapping[str, TaskConfig] = field(default_factory=dict)
    intents: Set[str] = frozenset()  # those that name their task; for the others, it is inferred from the text
    _prose: Verifier = field(default_factory=NonEmptyVerifier)

    def line(self, specialist: str) -> str:
        """Return the verifier in whose queue the specialist's answers wait."""
        verifier = self.specialists.get(specialist)
        return "" if verifier is None else verifier.name

    async def verify(self, purpose: AnswerPurpose, question: str, answer: str, *, is_cut: bool = False) -> Judgement:
        """Verify the answer; if it was cut, its complete part. Raises no exception but CancelledError."""
        own = self.specialists.get(purpose.specialist)
        if own is None:
            return Judgement(NONE, Verdict("skipped", "the specialist has no verifier any more"))
        if own.name == NONE:
            return Judgement(NONE, await own.verify(question, answer))
        judgement = Judgement(own.name, Verdict("skipped"))
        task = self.tasks.get(purpose.task)
        candidates = [own, self._prose]
        if purpose.structure is not None or (task is not None and (task.verify or task.labels)):
            candidates = await asyncio.to_thread(self._candidates, purpose, own, answer)
        if is_cut:  # that it is not empty says nothing about an answer whose own verifier found nothing complete
            candidates = [each for each in candidates if each is not self._prose]
        for verifier in candidates:
            verify = partial(verify_cut, verifier) if is_cut else verifier.verify
            judgement = Judgement(verifier.name, await verify(question, answer))
            is_of_task = verifier.name not in (own.name, STRUCTURE)
            says_nothing = ("skipped", "unavailable") if is_of_task else ("skipped",)
            if judgement.verdict.outcome not in says_nothing or verifier.name == NONE:
                break
        return judgement

    async def close(self) -> None:
        opened = () if self.opener is None else self.opener.opened
        every = {id(verifier): verifier for verifier in (*self.specialists.values(), *opened)}
        await asyncio.gather(*(verifier.close() for verifier in every.values()), return_exceptions=True)

    def _candidates(self, purpose: AnswerPurpose, own: Verifier, answer: str) -> list[Verifier]:
        """Return the verifiers to try, in order, without duplicates. Slow for a long answer or a large schema."""
        found = [*self._of_structure(purpose.structure), *self._of_task(purpose, own, answer), own, self._prose]
        return [each for place, each in enumerate(found) if each.name not in {other.name for other in found[:place]}]

    def _of_structure(self, structure: wire.Structure | None) -> Iterator[Verifier]:
        """Yield the verifier of a structure. A replica enforces the structure while it generates, so a schema with
        something that Octet does not verify (or should not: a caller's pattern may take forever) is JSON here."""
        if structure is None or self.opener is None:
            return
        kind = structure.WhichOneof("kind")
        if kind == "choice":
            yield FunctionVerifier(STRUCTURE, is_choice(structure.choice.choices))
        elif kind in ("json_object", "json_schema"):
            schema = _OBJECT if kind == "json_object" else _read_schema(structure.json_schema)
            yield TextVerifier(STRUCTURE, self.opener.pool, self.opener.limits, "json", schema=schema)

    def _of_task(self, purpose: AnswerPurpose, own: Verifier, answer: str) -> Iterator[Verifier]:
        """Yield the verifiers of the task; a stricter one of the specialist replaces one of the same language. An
        answer of another kind, such as C++ where the task expects JSON, is left to the specialist's own verifier. So is
        prose if the task was only inferred from the text, because a question about JSON need not ask for it."""
        task = self.tasks.get(purpose.task)
        if task is None or self.opener is None:
            return
        if task.labels:
            yield FunctionVerifier(LABELS, is_label(task.labels))
        elif task.verify is not None:
            tags = {block.language for block in extract_blocks(answer)}
            for spec in _fitting_specs(task.verify, tags):
                if spec in _TAGS and own.name.partition(":")[0] == spec:
                    yield own
                elif spec != "json" or purpose.intent in self.intents or tags & JSON_TAGS or _LIKE_JSON.search(answer):
                    yield self.opener.open(spec)


def open_verifiers(ensemble: Ensemble) -> VerifierSet:
    """Open the verifiers that the ensemble names; those of the default tasks open when they are needed. At most one
    process runs at a time, apart from those of custom verifiers. Raises ValueError for an invalid `verify`."""
    opener = VerifierOpener(ensemble)
    specialists = {each.name: opener.open(each.verify) for each in ensemble.specialists}
    for task in ensemble.tasks:
        if task.verify is not None and task.verify != CODE_VERIFIER:
            opener.open(task.verify)
    if ensemble.correctness.compiler != AUTO_COMPILER:
        opener.open("cpp")  # raises if there is no such compiler
    intents = frozenset(intent.name for intent in ensemble.intents if intent.task is not None)
    return VerifierSet(specialists, opener, {task.name: task for task in ensemble.tasks}, intents)


@dataclass(frozen=True, slots=True)
class FunctionVerifier:
    """Passes the answers for which the function returns no objection."""

    name: str
    _object: Callable[[str], str]

    async def verify(self, question: str, answer: str) -> Verdict:
        why = self._object(answer)
        return Verdict("failed", why) if why else Verdict("passed")

    async def close(self) -> None: ...


def is_choice(choices: Iterable[str]) -> Callable[[str], str]:
    known = frozenset(choices)
    return lambda answer: "" if answer in known or answer.strip() in known else "the answer is none of the choices"


def is_label(labels: Iterable[str]) -> Callable[[str], str]:
    """Return a function that accepts one of the labels, whatever its case, with quotes or a full stop around it."""
    known = frozenset(map(_plain, labels))
    return lambda answer: "" if _plain(answer) in known else f"the answer is none of the {len(known)} labels"


def _plain(label: str) -> str:
    return " ".join(label.strip(_QUOTES).casefold().split())


def _fitting_specs(spec: str, tags: Set[str]) -> Sequence[str]:
    """Return the verifiers to try for the `verify` of a task, by the tags of the answer's fences. A fence without a tag
    may be C++ or what the task expects."""
    named = [language for language, known in _TAGS.items() if tags & known]
    if spec == CODE_VERIFIER:
        return [each for each in named if each in _COMPILED] or (["cpp"] if "" in tags else [])
    language = spec.partition(":")[0]
    return [spec] if language not in _TAGS or not named or language in named else []


def _read_schema(text: str) -> Any:
    """Return the schema; True, which any JSON matches, if it cannot be verified here."""
    try:
        schema = json.loads(text)
        check_schema(schema)
    except (BadSchema, ValueError, RecursionError):
        return True
    return True if '"pattern"' in text else schema
