"""Opens the models and adapters that a configuration names, with the code of a replica, but without reading weights."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from octet.config.card_shares import card_of
from octet.config.ensemble import Ensemble, SpecialistConfig
from specialist.adapters.catalog import AdapterRefused
from specialist.adapters.store import AdapterStore
from specialist.engines.native.gpu_memory import MARGIN, weight_bytes
from specialist.engines.native.recurrent_state import share_states
from specialist.engines.native.settings import NativeSettings
from specialist.models.checks import Inspection, check_draft_model, check_model_context
from specialist.models.fields import ModelRefused
from specialist.models.hub import find_files, find_model, model_name
from specialist.models.open import inspect_model
from specialist.models.progress import Progress, silent
from specialist.text.codec import VocabularyCodec
from specialist.text.prompt import ChatTurn, TemplateRefused

Place = tuple[str | int, ...]
_GIB = 1 << 30


def card_bytes(device: str) -> int | None:
    """Return the memory of a GPU of this machine; None if it has no such GPU."""
    index = torch.device(device).index or 0
    return torch.cuda.get_device_properties(index).total_memory if index < torch.cuda.device_count() else None


def find_model_problems(ensemble: Ensemble, progress: Progress = silent) -> Iterator[tuple[Place, str]]:
    """Open each model once and each adapter against its model. Yield, for each problem, the key path and a message
    with the file and the remedy. Models of the hub are downloaded first."""
    specialists = [each for each in ensemble.specialists if each.engine == "native" and not each.addresses]
    named = (name for each in specialists for name in (each.model, each.draft_model) if name is not None)
    inspected = {model: _inspect(model, progress) for model in dict.fromkeys(named)}
    for specialist in specialists:
        model = inspected[specialist.model]
        draft = None if specialist.draft_model is None else inspected[specialist.draft_model]
        yield from _specialist_problems(specialist, model, progress)
        if draft is not None:
            yield from _draft_problems(specialist, draft, model)
        if (card := card_of(specialist)) is not None and model.config is not None:
            models = [each for each in (model, draft) if each is not None]
            yield from _card_problems(specialist, models, card_bytes(card))


def _inspect(model: str, progress: Progress) -> Inspection:
    refused = Inspection()
    path = refused.attempt(lambda: find_model(model, progress))
    if path is None:
        return refused
    found = inspect_model(path)
    if found.config is not None and found.vocabulary is not None and found.vocabulary.chat_template is not None:
        codec = VocabularyCodec(found.vocabulary, found.config.vocab_size)
        try:
            codec.render([ChatTurn("user", "a first message")])
        except TemplateRefused as error:
            found.problems.append(f"{model_name(path)}: {error}: fetch the template again, or correct it")
        finally:
            codec.close()
    return found


def _draft_problems(specialist: SpecialistConfig, draft: Inspection, model: Inspection) -> Iterator[tuple[Place, str]]:
    place = ("specialists", specialist.name, "draft_model")
    for problem in draft.problems:
        yield place, problem
    if draft.config is None or draft.vocabulary is None or model.config is None or model.vocabulary is None:
        return
    try:
        pairs = (draft.config, draft.vocabulary), (model.config, model.vocabulary)
        check_draft_model(*pairs, model_name(Path(str(specialist.draft_model))))
    except ModelRefused as refused:
        yield place, str(refused)


def _card_problems(
    specialist: SpecialistConfig, models: Sequence[Inspection], total: int | None
) -> Iterator[tuple[Place, str]]:
    """Compare the weights with the replica's share of the card, if this machine has the card."""
    if total is None or specialist.memory_fraction is None:
        return
    share = int(total * specialist.memory_fraction)
    itemsize: int = getattr(torch, specialist.dtype).itemsize
    weights = sum(weight_bytes(each.config, itemsize, each.bits) for each in models if each.config is not None)
    if weights + MARGIN >= share:
        needed = f"{weights / _GIB:.1f} GiB of weights and a margin of {MARGIN / _GIB:.1f} GiB"
        shown = f"{needed} exceed {share / _GIB:.1f} GiB of the card"
        yield ("specialists", specialist.name, "memory_fraction"), shown


def _specialist_problems(
    specialist: SpecialistConfig, model: Inspection, progress: Progress
) -> Iterator[tuple[Place, str]]:
    place = ("specialists", specialist.name)
    for problem in model.problems:
        yield (*place, "model"), problem
    if model.config is None:
        return  # adapters are checked against it
    try:
        check_model_context(model.config, specialist.context)
    except ModelRefused as refused:
        yield (*place, "context"), str(refused)
    if model.config.is_recurrent:
        try:
            share_states(model.config, specialist.state_memory, specialist.max_running)
        except MemoryError as refused:
            yield (*place, "state_memory"), str(refused)
    store = AdapterStore(model.config, NativeSettings(Path()).max_adapters)
    for name, text in specialist.adapters.items():
        try:
            path = find_files(text, "adapter", progress)
            store.load(name, path, specialist.adapter_digests.get(name, ""))
        except (AdapterRefused, ModelRefused) as refused:
            yield (*place, "adapters", name), f"{text}: {refused}"
