"""Plain text is never encoded as a control token, and decodes to itself."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from specialist.models.checkpoint import Vocabulary
from specialist.models.fields import ModelRefused
from specialist.models.open import open_checkpoint
from tests.later import Later
from tests.models.tiny import CONTROL, tiny_model
from tests.models.tool_model import tool_model

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words")
    tiny_model(path, "llama")
    return path


@pytest.fixture(scope="module")
def words(directory: Path) -> Vocabulary:
    return open_checkpoint(directory).vocabulary


@pytest.fixture(scope="module")
def demo_words(demo_gguf: Path) -> Vocabulary:
    return open_checkpoint(demo_gguf).vocabulary


PARTS = st.lists(st.sampled_from([*CONTROL, " ", "the", "<|", "im", "_end", "|>"])).map("".join)
TEXTS = st.one_of(st.text(max_size=40), PARTS)
WITHOUT_A_TOKEN = "\x04\x06\x13\x14\x16\x1d"
"""The demo model drops these characters, because it has no tokens for them. It has none for the first byte of
characters beyond U+3FFFF either."""
DEMO_TEXTS = st.one_of(
    st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters=WITHOUT_A_TOKEN)), PARTS
)


@given(text=TEXTS)
def test_text_comes_back_and_holds_no_control_token(words: Vocabulary, text: str) -> None:
    ids = words.tokenizer.encode(text).ids
    assert not set(words.control_ids.values()) & set(ids)
    assert words.tokenizer.decode(ids) == text


@given(text=DEMO_TEXTS)
def test_the_demo_models_text_comes_back(demo_words: Vocabulary, text: str) -> None:
    ids = demo_words.tokenizer.encode(text).ids
    assert not set(demo_words.control_ids.values()) & set(ids)
    assert demo_words.tokenizer.decode(ids) == text


@given(text=st.text(max_size=40))
def test_ordinary_text_is_encoded_as_by_the_tokenizer_itself(directory: Path, words: Vocabulary, text: str) -> None:
    untouched = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert words.tokenizer.encode(text).ids == untouched.encode(text, add_special_tokens=False).ids


# The token ids that llama.cpp gives for the same file.
LLAMA_CPP = {
    "Hello world": "19556 905",
    "  two  spaces  ": "216 827 216 5600 256",
    "\n\n\n  x": "1116 3805 1792",
    "\t\tint x;": "197 197 591 1792 43",
    "a\r\nb\r\n": "81 201 198 82 2738",
    "if (a != b && c >= d || !e) { f->g(h)[i] <<= 0xDEADBEEF; }": (
        "342 365 81 6541 278 1456 22 265 10888 287 14669 5728 85 25 1662 275 22690 87 24 88 12993 89 77 22646 "
        "45 216 32 104 6279 3907 50 8405 54 43 4029"
    ),
    "x = 'it''s' + \"don't\" + I'll we've he'd they're I'm": (
        "104 446 637 269 3816 99 23 1232 476 12420 982 18 1232 339 3060 392 3543 384 6737 502 2316 339 5248"
    ),
    "x1 y22 z333 4444": "104 33 329 34 34 1892 35 35 35 216 36 36 36 36",
    "\xbd cup": "16738 7118",
    "\u0967\u0968\u0969": "9310 117 9310 118 9310 119",
    "e\u0301 decomposed": "85 151 219 48304",
    "\u4f60\u597d,\u4e16\u754c": "18645 250 48392 138 28 7906 240 178 239 230",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family": (
        "10813 235 119 321 231 10813 235 119 321 231 10813 235 117 321 231 10813 235 116 1564"
    ),
    "\x85nel x": "141 223 5824 1792",
    "<|im_start|>user\nhi<|im_end|>": "44 108 306 79 3738 108 46 4093 198 6004 44 108 306 79 486 108 46",
}


@pytest.mark.parametrize(("text", "ids"), LLAMA_CPP.items(), ids=repr)
def test_the_demo_model_reads_as_llama_cpp_does(demo_words: Vocabulary, text: str, ids: str) -> None:
    assert demo_words.tokenizer.encode(text).ids == [int(token) for token in ids.split()]


def test_the_demo_models_control_tokens(demo_words: Vocabulary) -> None:
    assert demo_words.bos_id is None
    assert demo_words.eos_ids == {0, 2}
    assert demo_words.control_ids["<|im_start|>"] == 1
    assert len(demo_words.control_ids) == 17
    assert demo_words.chat_template is not None


def changed(directory: Path, tmp_path: Path, name: str, changes: dict[str, Any]) -> Path:
    copy = Path(shutil.copytree(directory, tmp_path / "model"))
    content = json.loads((copy / name).read_text())
    (copy / name).write_text(json.dumps({**content, **changes}))
    return copy


def template(*parts: dict[str, Any]) -> dict[str, Any]:
    special = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}
    return {"type": "TemplateProcessing", "single": list(parts), "pair": list(parts), "special_tokens": special}


START = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


@pytest.mark.parametrize(
    ("processor", "bos_id"),
    [
        (None, None),
        (template(TEXT), None),
        (template(TEXT, START), None),
        (template(START, TEXT), 0),
        ({"type": "Sequence", "processors": [template(START, TEXT)]}, 0),
    ],
)
def test_the_first_token_is_the_templates(
    directory: Path, tmp_path: Path, processor: dict[str, Any] | None, bos_id: int | None
) -> None:
    copy = changed(directory, tmp_path, "tokenizer.json", {"post_processor": processor})
    vocabulary = open_checkpoint(copy).vocabulary
    assert vocabulary.bos_id == bos_id
    assert vocabulary.tokenizer.encode("the").ids == vocabulary.tokenizer.encode("the", add_special_tokens=False).ids


def test_the_settings_decide_over_the_template(directory: Path, tmp_path: Path) -> None:
    copy = changed(directory, tmp_path, "tokenizer_config.json", {"add_bos_token": True})
    assert open_checkpoint(copy).vocabulary.bos_id == 0
    shutil.rmtree(copy)
    copy = changed(directory, tmp_path, "tokenizer_config.json", {"add_bos_token": True, "bos_token": "the"})
    with pytest.raises(ModelRefused, match="bos_token"):
        open_checkpoint(copy)


def test_a_merge_that_spells_a_control_token_is_dropped(directory: Path, tmp_path: Path) -> None:
    source = json.loads((directory / "tokenizer.json").read_text())
    model = {**source["model"], "merges": [*source["model"]["merges"], ["<", "/"], ["</", "s"]]}
    model["vocab"] = {**model["vocab"], "</": 300, "</s": 301}
    added = [*source["added_tokens"], {**source["added_tokens"][0], "id": 301, "content": "</s"}]
    copy = changed(directory, tmp_path, "tokenizer.json", {"model": model, "added_tokens": added})
    vocabulary = open_checkpoint(copy).vocabulary
    assert vocabulary.control_ids["</s"] == 301
    assert 301 not in vocabulary.tokenizer.encode("</s>").ids


@pytest.mark.parametrize("special", [False, True])
def test_added_tokens_keep_their_ids(tmp_path: Path, special: bool) -> None:
    words = open_checkpoint(tool_model(tmp_path, special=special)).vocabulary
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab()
    assert {**words.tokenizer.get_vocab(), **words.control_ids} == theirs
    assert all(words.tokenizer.token_to_id(text) in (None, token) for text, token in theirs.items())
    assert [words.tokenizer.id_to_token(theirs[text]) for text in ("on", "er")] == ["on", "er"]


def test_a_template_in_a_file_of_its_own_goes_first(directory: Path, tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    copy = changed(directory, tmp_path, "tokenizer_config.json", {"chat_template": several})
    assert open_checkpoint(copy).vocabulary.chat_template == "d"
    (copy / "chat_template.jinja").write_text("own")
    assert open_checkpoint(copy).vocabulary.chat_template == "own"


def test_the_trained_model_writes_a_story(stories_dir: Path) -> None:
    vocabulary = open_checkpoint(stories_dir).vocabulary
    assert vocabulary.bos_id == 1
    ids = [vocabulary.bos_id, *vocabulary.tokenizer.encode("Once upon a time").ids]
    assert ids == [1, 403, 407, 261, 378]
    theirs = transformers.AutoTokenizer.from_pretrained(stories_dir)
    assert theirs("Once upon a time")["input_ids"] == ids
    assert transformers.LlamaForCausalLM.from_pretrained(stories_dir).config.vocab_size == 512
