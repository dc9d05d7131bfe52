"""The words of a model out of tokenizer.json: control tokens taken out of its reach, nothing added to a text."""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from specialist.models.checkpoint import Vocabulary
from specialist.models.checks import check_ids
from specialist.models.errors import ModelRefused
from specialist.models.fields import Fields
from specialist.models.hf.files import Directory

PROBE = "int main() { return 0; } // \N{GREEK SMALL LETTER ALPHA}\n"


def read_vocabulary(directory: Directory, config: Fields) -> Vocabulary:
    """Raises ModelRefused unless every id fits the model's rows."""
    source = directory.json("tokenizer.json")
    settings = directory.maybe_json("tokenizer_config.json")
    vocab_size = config.integer("vocab_size")
    control_ids = _control_ids(source)
    tokenizer = _build(plain_text_only(source, control_ids), source.source)
    check_ids([*tokenizer.get_vocab().values(), *control_ids.values()], vocab_size, source.source)
    eos_ids = _eos_ids(directory, config, settings, {**tokenizer.get_vocab(), **control_ids})
    check_ids(eos_ids, vocab_size, f"{directory.name}: eos_token_id")
    return Vocabulary(
        tokenizer=tokenizer,
        control_ids=control_ids,
        bos_id=_bos_id(source, settings, control_ids),
        eos_ids=eos_ids,
        chat_template=_chat_template(directory, settings),
        bos_token=_named_token(settings, "bos_token", control_ids),
        eos_token=_named_token(settings, "eos_token", control_ids),
    )


def _control_ids(source: Fields) -> dict[str, int]:
    """What is marked special; but the token for the unknown, where text may come to it, is a word."""
    added = [entry for entry in _added_tokens(source) if entry.values.get("special") is True]
    ids = {entry.text("content"): entry.integer("id", low=0) for entry in added}
    model = source.table("model")
    if model.has("unk_token") and not model.flag("byte_fallback", False) and not _is_byte_level(source):
        ids.pop(model.text("unk_token"), None)
    return ids


def _added_tokens(source: Fields) -> list[Fields]:
    entries = source.listed("added_tokens") if source.has("added_tokens") else []
    fields = [Fields(f"{source.source}: added_tokens", entry) for entry in entries if isinstance(entry, dict)]
    if len(fields) != len(entries):
        raise source.wrong("added_tokens", "must hold objects")
    return fields


def _is_byte_level(source: Fields) -> bool:
    return '"ByteLevel"' in json.dumps(source.values.get("pre_tokenizer"))


def plain_text_only(source: Fields, control_ids: Mapping[str, int]) -> dict[str, Any]:
    """tokenizer.json without control tokens: neither matched in a text, nor merged, nor put around it."""
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


def _merged(pair: object, model: Fields) -> str:
    """A merge is "a b" in older files, ["a", "b"] in newer ones."""
    parts = pair.split(" ") if isinstance(pair, str) else pair
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise model.wrong("merges", f"must hold pairs of words, got {pair!r:.80}")
    return "".join(parts)


def _build(content: dict[str, Any], source: str) -> Tokenizer:
    """Built and tried once: a broken tokenizer shows here, not in somebody's request."""
    try:
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.decode(tokenizer.encode(PROBE, add_special_tokens=False).ids)
    except Exception as error:
        raise ModelRefused(f"{source}: the tokenizer is damaged: {error}; fetch it again") from None
    return tokenizer


def _bos_id(source: Fields, settings: Fields, control_ids: Mapping[str, int]) -> int | None:
    """As tokenizer_config.json says; where it says nothing, as the tokenizer's own template does."""
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


def _eos_ids(directory: Directory, config: Fields, settings: Fields, ids: Mapping[str, int]) -> frozenset[int]:
    """Whatever any of the files calls the end of an answer."""
    found: set[int] = set()
    for fields in (config, directory.maybe_json("generation_config.json")):
        value = fields.values.get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        found |= {Fields(fields.source, {"eos_token_id": one}).integer("eos_token_id", low=0) for one in listed}
    text = _token_text(settings, "eos_token")
    if text is not None and text not in ids:
        raise settings.wrong("eos_token", f"must be one of the tokenizer's tokens, got {text!r:.80}")
    return frozenset(found if text is None else found | {ids[text]})


def _named_token(settings: Fields, name: str, control_ids: Mapping[str, int]) -> str | None:
    text = _token_text(settings, name)
    return text if text in control_ids else None


def _token_text(settings: Fields, name: str) -> str | None:
    """Older files hold an object with the text as its content."""
    if isinstance(settings.values.get(name), dict):
        return settings.table(name).maybe_text("content")
    return settings.maybe_text(name)


def _chat_template(directory: Directory, settings: Fields) -> str | None:
    """A file of its own goes first. Of several, the one named default."""
    if directory.has("chat_template.jinja"):
        return _decoded(directory)
    template = settings.values.get("chat_template")
    if not isinstance(template, list):
        return settings.maybe_text("chat_template")
    named = [Fields(settings.source, entry) for entry in template if isinstance(entry, dict)]
    return next((entry.text("template") for entry in named if entry.values.get("name") == "default"), None)


def _decoded(directory: Directory) -> str:
    try:
        return directory.file("chat_template.jinja").read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelRefused(f"{directory.name}: chat_template.jinja is not UTF-8: fetch it again") from None
