"""Every answer has the requested structure, with any model."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from jsonschema import Draft202012Validator

from octet.clock import SystemClock
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import Request, Sampling
from specialist.scheduling.step import Emitted, Finished
from specialist.server.native_replica import create_native_replica
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from specialist.text.prompt import Structure
from specialist.text.structured_output import Guide
from tests.models.stories import stories_dir
from tests.specialist.guide.schemas import REGEXES, random_object, random_schema
from tests.specialist.server.harness import FREE, sim

__all__ = ["stories_dir"]
LONGEST = 300


@pytest.fixture(params=["sim", "stories"])
def replica(request: pytest.FixtureRequest) -> AssembledReplica:
    """Return a replica whose vocabulary has one token per byte, or is a real SentencePiece vocabulary."""
    if request.param == "sim":
        return sim(FREE, num_blocks=1024)()
    directory: Path = request.getfixturevalue("stories_dir")
    settings = ReplicaSettings(name="stories", model=directory, num_blocks=1024, kernel="fused", threads=1)
    return create_native_replica(settings, SystemClock())


def answers(replica: AssembledReplica, structures: list[Structure], sampling: Sampling) -> list[tuple[str, str]]:
    """Run all requests together. Return the text and the finish reason of each."""
    loop = StepLoop(replica.scheduler, replica.engine)
    prompt = replica.codec.encode("Once upon a time")
    for seed, structure in enumerate(structures):
        guide = Guide(replica.grammars.compile(structure))
        replica.scheduler.submit(
            Request(
                str(seed),
                replica.lane,
                prompt,
                max_tokens=LONGEST,
                stop_ids=replica.codec.stop_ids,
                sampling=sampling,
                seed=seed,
                guide=guide,
            )
        )
    words = {str(seed): replica.codec.detokenizer() for seed in range(len(structures))}
    texts, ends = dict.fromkeys(words, ""), {}
    while True:
        step = loop.run_once()
        for event in replica.scheduler.take_events():
            if isinstance(event, Emitted):
                texts[event.request_id] += words[event.request_id].push(event.tokens)
            elif isinstance(event, Finished):
                texts[event.request_id] += words[event.request_id].finish()
                ends[event.request_id] = event.reason
        if step is None:
            return [(texts[name], ends[name]) for name in words]


def check(replica: AssembledReplica, structures: list[Structure], fits: Callable[[Structure, str], bool]) -> None:
    found = answers(replica, structures, Sampling(temperature=1.0))
    for structure, (text, end) in zip(structures, found, strict=True):
        assert end in ("stop", "length"), (structure, text, end)
        if end == "stop":
            assert fits(structure, text), (structure, text)
    assert sum(end == "stop" for _, end in found) > 0.7 * len(found)


@pytest.mark.parametrize("number", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_random_schemas(replica: AssembledReplica, number: int) -> None:
    rng = Random(6)
    schemas = [random_schema(rng) if seed % 2 else random_object(rng, 3) for seed in range(number)]
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
    check(replica, [Structure("json_schema", json.dumps(schema)) for schema in schemas], _valid)


def _valid(structure: Structure, text: str) -> bool:
    Draft202012Validator(json.loads(structure.text)).validate(json.loads(text))
    return True


def test_regexes(replica: AssembledReplica) -> None:
    structures = [Structure("regex", regex) for regex in REGEXES for _ in range(4)]
    check(replica, structures, lambda structure, text: re.fullmatch(structure.text, text) is not None)


def test_choices(replica: AssembledReplica) -> None:
    choices = ("yes", "yes sir", " with a space", "</s>", "<|end|>", 'quo"te\\', "zwei\nZeilen", "Grüße 😀", "\x00")
    structures = [Structure("choice", choices=choices)] * 40
    check(replica, structures, lambda structure, text: text in structure.choices)
    texts = {text for text, _ in answers(replica, structures, Sampling(temperature=100.0))}
    assert len(texts) > 3


def test_any_object(replica: AssembledReplica) -> None:
    """Closing tokens get a bias, because a model trained on stories would never close a bracket by itself."""
    closing = [token for token in range(replica.codec.vocab_size) if _says(replica, token) in ('"', "}", "0")]
    sampling = Sampling(temperature=1.0, logit_bias=tuple((token, 6.0) for token in closing))
    found = answers(replica, [Structure("json_object")] * 20, sampling)
    ended = [text for text, end in found if end == "stop"]
    assert ended and all(isinstance(json.loads(text), dict) for text in ended)
    assert {end for _, end in found} <= {"stop", "length"}


def _says(replica: AssembledReplica, token: int) -> str:
    words = replica.codec.detokenizer()
    return words.push((token,)) + words.finish()


def test_bias_penalties_and_least_length_never_break_the_form(replica: AssembledReplica) -> None:
    """If the grammar permits nothing but the end, the answer ends even before its minimum length."""
    stop = min(replica.codec.stop_ids)
    sampling = Sampling(
        temperature=1.5,
        logit_bias=((stop, 100.0),),
        repetition_penalty=1.5,
        presence_penalty=2.0,
        frequency_penalty=2.0,
        min_tokens=LONGEST,
        top_k=5,
        top_p=0.9,
    )
    for text, end in answers(replica, [Structure("choice", choices=("a", "bc"))] * 4, sampling):
        assert (text in ("a", "bc"), end) == (True, "stop")
    for text, end in answers(replica, [Structure("regex", "a{5,2000}")] * 2, sampling):
        assert len(text) >= 5 and set(text) == {"a"}
        assert end == "length" or replica.engine_name == "sim"  # The reference answer has no minimum length.
