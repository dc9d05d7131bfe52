"""Opens the models and adapters that a configuration names, with the code of a replica, but without reading weights."""

from collections.abc import Iterator
from pathlib import Path

from octet.config.ensemble import Ensemble, SpecialistConfig
from specialist.adapters.catalog import AdapterRefused
from specialist.adapters.store import AdapterStore
from specialist.engines.native.settings import NativeSettings
from specialist.models.checks import Inspection, check_model_context
from specialist.models.fields import ModelRefused
from specialist.models.hub import find_files, find_model, model_name
from specialist.models.open import inspect_model
from specialist.models.progress import Progress, silent
from specialist.text.codec import VocabularyCodec
from specialist.text.prompt import ChatTurn, TemplateRefused

Place = tuple[str | int, ...]


def find_model_problems(ensemble: Ensemble, progress: Progress = silent) -> Iterator[tuple[Place, str]]:
    """Open each model once and each adapter against its model. Yield, for each problem, the key path and a message
    with the file and the remedy. Models of the hub are downloaded first."""
    specialists = [each for each in ensemble.specialists if each.engine == "native" and not each.addresses]
    inspected = {model: _inspect(model, progress) for model in dict.fromkeys(each.model for each in specialists)}
    for specialist in specialists:
        yield from _specialist_problems(specialist, inspected[specialist.model], progress)


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
    store = AdapterStore(model.config, NativeSettings(Path()).max_adapters)
    for name, text in specialist.adapters.items():
        try:
            path = find_files(text, "adapter", progress)
            store.load(name, path, specialist.adapter_digests.get(name, ""))
        except (AdapterRefused, ModelRefused) as refused:
            yield (*place, "adapters", name), f"{text}: {refused}"
