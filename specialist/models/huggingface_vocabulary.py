"""The vocabulary in `tokenizer.json`, without control tokens: text never becomes one, and none is added."""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from specialist.models.checkpoint import Vocabulary
from specialist.models.checks import check_vocabulary_ids
from specialist.models.fields import ModelFields, ModelRefused
from specialist.models.huggingface_files import ModelDirectory

PROBE = "int main() { return 0; } // \N{GREEK SMALL LETTER ALPHA}\n"


def read_huggingface_vocabulary(directory: ModelDirectory, config: ModelFields) -> Vocabulary:
    """Read the tokenizer. Raises ModelRefused if an id has no row in the model."""
    source = directory.json("tokenizer.json")
    settings = directory.optional_json("tokenizer_config.json")
    vocab_size = config.integer("vocab_size")
    control_ids = _control_ids(source)
    tokenizer = _build(plain_text_only(source, control_ids), source.source)
    check_vocabulary_ids([*tokenizer.get_vocab().values(), *control_ids.values()], vocab_size, source.source)
    eos_ids = _eos_ids(directory, config, settings, {**tokenizer.get_vocab(), **control_ids})
    check_vocabulary_ids(eos_ids, vocab_size, f"{directory.name}: eos_token_id")
    return Vocabulary(
        tokenizer,
        control_ids,
        bos_id=_bos_id(source, settings, control_ids),
        eos_ids=eos_ids,
        chat_template=_chat_template(directory, settings),
        bos_token=_named_token(settings, "bos_token", control_ids),
        eos_token=_named_token(settings, "eos_token", control_ids),
    )


def _control_ids(source: ModelFields) -> dict[str, int]:
    added = [entry for entry in _added_tokens(source) if entry.values.get("special") is True]
    ids = {entry.text("content"): entry.integer("id", low=0) for entry in added}
    model, is_byte_level = source.table("model"), '"ByteLevel"' in json.dumps(source.values.get("pre_tokenizer"))
    if model.has("unk_token") and not model.flag("byte_fallback", False) and not is_byte_level:
        ids.pop(model.text("unk_token"), None)
    return ids


def _added_tokens(source: ModelFields) -> list[ModelFields]:
    entries = source.listed("added_tokens") if source.has("added_tokens") else []
    fields = [ModelFields(f"{source.source}: added_tokens", entry) for entry in entries if isinstance(entry, dict)]
    if len(fields) != len(entries):
        raise source.wrong("added_tokens", "must contain objects")
    return fields


def plain_text_only(source: ModelFields, control_ids: Mapping[str, int]) -> dict[str, Any]:
    """Remove the control tokens from tokenizer.json, so that text is neither matched with them nor merged into them."""
    model = source.table("model")
    if model.text("type", "BPE") != "BPE":
        raise model.wrong("type", f"must be BPE, got {model.text('type')!r:.80}: convert the tokenizer")
    vocab = {text: i for text, i in model.table("vocab").values.items() if text not in control_ids}
    merges = [pair for pair in model.listed("merges") if _merged(pair, model) not in control_ids]
    unknown = model.values.get("unk_token")
    plain = {**model.values, "vocab": vocab, "merges": merges, "unk_token": unknown if unknown in vocab else None}
    added = [entry.values for entry in _added_tokens(source) if entry.values.get("content") not in control_ids]
    outside = {"post_processor": None, "truncation": None, "padding": None}
    return {**source.values, **outside, "model": plain, "added_tokens": added}


def _merged(pair: object, model: ModelFields) -> str:
    """A merge is "a b" in older files, ["a", "b"] in newer ones."""
    parts = pair.split(" ") if isinstance(pair, str) else pair
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise model.wrong("merges", f"must contain pairs of words, got {pair!r:.80}")
    return "".join(parts)


def _build(content: dict[str, Any], source: str) -> Tokenizer:
    """Build the tokenizer and try it once, so that a broken one fails here and not in a request."""
    try:
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.decode(tokenizer.encode(PROBE, add_special_tokens=False).ids)
    except Exception as error:
        raise ModelRefused(f"{source}: the tokenizer is damaged: {error}; fetch it again") from None
    return tokenizer


def _bos_id(source: ModelFields, settings: ModelFields, control_ids: Mapping[str, int]) -> int | None:
    """Read the token from tokenizer_config.json, or else from the tokenizer's post-processor."""
    if not settings.has("add_bos_token"):
        return _template_bos(source.values.get("post_processor"), control_ids)
    if not settings.flag("add_bos_token"):
        return None
    text = _token_text(settings, "bos_token")
    if text is None or text not in control_ids:
        raise settings.wrong("bos_token", f"must be one of the tokenizer's control tokens, got {text!r:.80}")
    return control_ids[text]


def _template_bos(processor: object, control_ids: Mapping[str, int]) -> int | None:
    if not isinstance(processor, dict):
        return None
    for inner in processor.get("processors") or []:
        found = _template_bos(inner, control_ids)
        if found is not None:
            return found
    first = next(iter(processor.get("single") or []), None)
    special = first.get("SpecialToken") if isinstance(first, dict) else None
    text = special.get("id") if isinstance(special, dict) else None
    return control_ids.get(text) if isinstance(text, str) else None


def _eos_ids(
    directory: ModelDirectory, config: ModelFields, settings: ModelFields, ids: Mapping[str, int]
) -> frozenset[int]:
    """Return all tokens that any of the files declares to end an answer."""
    found: set[int] = set()
    for fields in (config, directory.optional_json("generation_config.json")):
        value = fields.values.get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        found |= {ModelFields(fields.source, {"eos_token_id": each}).integer("eos_token_id", low=0) for each in listed}
    text = _token_text(settings, "eos_token")
    if text is not None and text not in ids:
        raise settings.wrong("eos_token", f"must be one of the tokenizer's tokens, got {text!r:.80}")
    return frozenset(found if text is None else found | {ids[text]})


def _named_token(settings: ModelFields, name: str, control_ids: Mapping[str, int]) -> str | None:
    text = _token_text(settings, name)
    return text if text in control_ids else None


def _token_text(settings: ModelFields, name: str) -> str | None:
    """In older files the value is an object that holds the text as `content`."""
    if isinstance(settings.values.get(name), dict):
        return settings.table(name).optional_text("content")
    return settings.optional_text(name)


def _chat_template(directory: ModelDirectory, settings: ModelFields) -> str | None:
    """A separate file takes precedence. Of several templates, the one named `default` is used."""
    if directory.has("chat_template.jinja"):
        try:
            return directory.file("chat_template.jinja").read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ModelRefused(f"{directory.name}: chat_template.jinja is not UTF-8: fetch it again") from None
    template = settings.values.get("chat_template")
    if not isinstance(template, list):
        return settings.optional_text("chat_template")
    named = [ModelFields(settings.source, entry) for entry in template if isinstance(entry, dict)]
    return next((entry.text("template") for entry in named if entry.values.get("name") == "default"), None)
