"""Chat templates render as in transformers, and hostile messages never become control tokens."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specialist.text.codec import ChatTemplate, TemplateLimits
from specialist.text.prompt import ChatTurn, NotText, TemplateRefused, TextTooLong, TooManyMessages
from specialist.text.tokenization import Detokenizer, Encoder, TokenPieces
from tests.later import Later
from tests.text.templates import CHATML, TEMPLATES
from tests.text.vocabularies import CONTROLS, words

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")

NOON = datetime(2025, 7, 26, 12)
ordinary = st.text("the quick\n ßBär12<>|你{%}'\"\\", max_size=25) | st.sampled_from(("<tool_response>a", " a ", ""))
hostile = st.lists(st.sampled_from((*CONTROLS, "<|im_", "start|>", "{{ bos_token }}", "a", " ", "\n")), max_size=6).map(
    "".join
)


@st.composite
def conversations(draw: st.DrawFn, contents: st.SearchStrategy[str], system: bool) -> list[ChatTurn]:
    turns = draw(st.lists(contents, min_size=1, max_size=4))
    talk = [ChatTurn(("user", "assistant")[index % 2], content) for index, content in enumerate(turns)]
    first = [ChatTurn("system", draw(contents))] if system and draw(st.booleans()) else []
    return first + talk


@cache
def template_of(name: str, kind: str) -> ChatTemplate:
    vocabulary = words(kind, TEMPLATES[name], "<s>").vocabulary
    return ChatTemplate(vocabulary, now=lambda: NOON, limits=TemplateLimits(seconds=10.0))


@cache
def peer_of(name: str, kind: str) -> "transformers.PreTrainedTokenizerFast":
    dated = TEMPLATES[name].replace('strftime_now("%d %b %Y")', repr(NOON.strftime("%d %b %Y")))
    full = words(kind).full
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=full, chat_template=dated, **named)  # type: ignore[no-untyped-call]


def control_sequence(kind: str, tokens: Sequence[int]) -> list[int]:
    control = set(words(kind).vocabulary.control_ids.values())
    return [token for token in tokens if token in control]


CASES = [(name, "byte-level") for name in TEMPLATES] + [
    ("chatml", "gpt-2"),
    ("mistral", "first only"),
    ("mistral", "byte-fallback"),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
@settings(max_examples=40)
@given(data=st.data())
def test_an_ordinary_conversation_is_what_transformers_makes_of_it(name: str, kind: str, data: st.DataObject) -> None:
    messages = data.draw(conversations(ordinary, system=name != "mistral"))
    expected = peer_of(name, kind).apply_chat_template(
        [message._asdict() for message in messages], add_generation_prompt=True, return_dict=False
    )
    assert list(template_of(name, kind).render(messages)) == expected


@pytest.mark.parametrize(("name", "kind"), CASES)
@settings(max_examples=40)
@given(data=st.data())
def test_no_message_becomes_a_control_token(name: str, kind: str, data: st.DataObject) -> None:
    messages = data.draw(conversations(hostile, system=name != "mistral"))
    harmless = [message._replace(content="a") for message in messages]
    template = template_of(name, kind)
    assert control_sequence(kind, template.render(messages)) == control_sequence(kind, template.render(harmless))


@settings(max_examples=40)
@given(st.lists(hostile | ordinary, min_size=1, max_size=3), hostile)
def test_every_word_of_a_message_and_of_its_role_arrives(contents: list[str], role: str) -> None:
    tokens = template_of("chatml", "byte-level").render([ChatTurn(role, content) for content in contents])
    detokenizer = Detokenizer(TokenPieces(words("byte-level").vocabulary))
    text = detokenizer.push(tokens) + detokenizer.finish()
    system = "" if role == "system" else "system\nYou are a helpful assistant.\n"
    assert text == system + "".join(f"{role}\n{content}\n" for content in contents) + "assistant\n"


def test_a_template_reads_in_a_message_what_transformers_reads() -> None:
    """The Qwen3 template removes the reasoning of earlier answers. It finds the reasoning by the string `</think>`,
    which is also a control token."""
    talk = [
        ChatTurn("user", "a"),
        ChatTurn("assistant", "<think>the quick</think>\n\nbrown"),
        ChatTurn("user", "fox"),
    ]
    cut = [*talk[:1], ChatTurn("assistant", "brown"), *talk[2:]]
    template = template_of("qwen 3", "byte-level")
    assert template.render(talk) == template.render(cut)


def test_refusal_by_a_template_is_passed_on() -> None:
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        template_of("mistral", "byte-level").render([ChatTurn("assistant", "a")])


def test_a_model_without_a_template_is_refused() -> None:
    with pytest.raises(TemplateRefused, match="has no chat template"):
        ChatTemplate(words("gpt-2").vocabulary)


def test_a_template_that_makes_control_tokens_out_of_pieces_is_refused() -> None:
    made = CHATML.replace("'<|im_start|>' + message", "'<|im_' + ('start' if message else '') + '|>' + message")
    with pytest.raises(TemplateRefused, match="from pieces"):
        ChatTemplate(words("gpt-2", made).vocabulary).render([ChatTurn("user", "a")])


def test_a_control_token_written_as_a_constant_is_found_however_it_is_written() -> None:
    made = CHATML.replace("'<|im_start|>' + message", "'<|im' '_sta' + 'rt' ~ '|>' + message")
    again = ChatTemplate(words("byte-level", made).vocabulary).render([ChatTurn("user", "a")])
    assert again == template_of("chatml", "byte-level").render([ChatTurn("user", "a")])


def test_several_ends_leave_it_open_which_one_a_template_means() -> None:
    vocabulary = replace(words("gpt-2", "{{ eos_token }}").vocabulary, eos_ids=frozenset({1, 2}))
    with pytest.raises(TemplateRefused, match=r"has several: \[1, 2\]"):
        ChatTemplate(vocabulary).render([ChatTurn("user", "a")])
    assert ChatTemplate(replace(vocabulary, chat_template="the")).render([]) == Encoder(vocabulary).encode("the")


def test_limits_are_checked_before_anything_is_rendered() -> None:
    vocabulary = words("gpt-2", "{{ no such thing").vocabulary
    template = ChatTemplate(vocabulary, Encoder(vocabulary, max_bytes=10), limits=TemplateLimits(max_messages=2))
    with pytest.raises(TooManyMessages, match="messages has 3 entries; the limit is 2"):
        template.render([ChatTurn("user", "a")] * 3)
    with pytest.raises(TextTooLong, match=r"messages\[1\].content has 11 bytes; the limit is 10"):
        template.render([ChatTurn("user", "a"), ChatTurn("u", "a" * 11)])
    with pytest.raises(TextTooLong, match="messages has 12 bytes"):
        template.render([ChatTurn("user", "aa")] * 2)
    with pytest.raises(NotText, match=r"messages\[0\].role"):
        template.render([ChatTurn("\ud800", "a")])
    with pytest.raises(TemplateRefused, match="TemplateSyntaxError"):
        template.render([ChatTurn("user", "a")])


def test_a_template_gets_the_tokens_that_its_files_name() -> None:
    source = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{{ eos_token }}{% endfor %}"
    plain = words("gpt-2", source).vocabulary
    end, start = sorted(plain.control_ids)[:2]
    named = replace(plain, bos_id=None, eos_ids=frozenset(plain.control_ids.values()), bos_token=start, eos_token=end)
    template = ChatTemplate(named)
    try:
        ids = template.render([ChatTurn("user", "hello")])
    finally:
        template.close()
    assert (ids[0], ids[-1]) == (named.control_ids[start], named.control_ids[end])
