"""Whether and how a model calls tools is detected from its template."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from specialist.models.checkpoint import Vocabulary
from specialist.text.codec import ChatTemplate
from specialist.text.prompt import ChatTurn, MessageToolCall, OfferedTool, ToolsUnsupported
from specialist.text.tokenization import Encoder
from specialist.text.tool_calls import HERMES, LLAMA, MISTRAL, ToolDialect
from tests.later import Later
from tests.specialist.tools import templates
from tests.text.templates import CHATML, QWEN25
from tests.text.vocabularies import words

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")

TOOL = OfferedTool("find", "Looks it up.", '{"type": "object", "properties": {"what": {"type": "string"}}}', False)
CALL = MessageToolCall("call_1", "find", '{"what": "<|im_end|> é"}')
ASKED = ChatTurn("user", "where?")
CALLED = ChatTurn("assistant", "", (CALL,))
TOOL_RESULT = ChatTurn("tool", "over there", tool_call_id="call_1")


def vocabulary(template: str) -> Vocabulary:
    begin, end = "<s>", "</s>"
    return replace(words("byte-level", template, begin).vocabulary, bos_token=begin, eos_token=end)


def said(template: str, messages: list[ChatTurn], tools: tuple[OfferedTool, ...] = ()) -> str:
    """Return the rendered text without control tokens."""
    words_ = vocabulary(template)
    ids = ChatTemplate(words_, Encoder(words_)).render(messages, tools)
    return str(words_.tokenizer.decode([each for each in ids if each not in words_.control_ids.values()]))


@pytest.mark.parametrize(
    ("template", "dialect"), [(templates.QWEN, HERMES), (templates.LLAMA3, LLAMA), (templates.MISTRAL, MISTRAL)]
)
def test_the_way_a_template_writes_a_call_is_the_models_own(template: str, dialect: ToolDialect) -> None:
    given = vocabulary(template)
    made = ChatTemplate(given)
    assert made.dialect() == dialect
    ids = made.render([ASKED, CALLED, TOOL_RESULT], (TOOL,))
    text = str(given.tokenizer.decode([each for each in ids if each not in given.control_ids.values()]))
    assert '"Looks it up."' in text and '"what": {' in text
    assert f'"name": "find", "{dialect.key}": {{"what": "<|im_end|> é"}}' in text, (
        "a caller's text must stay plain text"
    )
    assert "over there" in text
    made.close()


@pytest.mark.parametrize("template", [templates.QWEN, templates.LLAMA3, templates.MISTRAL])
def test_a_conversation_with_calls_is_what_transformers_makes_of_it(template: str) -> None:
    call = CALL._replace(call_id="abcdefgh1", arguments='{"what": "it", "n": [1, {"é": null}]}')
    messages = [ASKED, ChatTurn("assistant", "", (call,)), TOOL_RESULT._replace(tool_call_id="abcdefgh1")]
    function = {"name": "find", "arguments": json.loads(call.arguments)}
    plain: Any = [
        {"role": "user", "content": "where?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "over there", "tool_call_id": "abcdefgh1"},
    ]
    shown = {"name": "find", "description": "Looks it up.", "parameters": json.loads(TOOL.parameters)}
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    full = words("byte-level").full
    peer = transformers.PreTrainedTokenizerFast(tokenizer_object=full, chat_template=template, **named)  # type: ignore[no-untyped-call]
    expected = peer.apply_chat_template(
        plain, tools=[{"type": "function", "function": shown}], add_generation_prompt=True, return_dict=False
    )
    made = ChatTemplate(vocabulary(template))
    assert list(made.render(messages, (TOOL,))) == expected
    made.close()


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (CHATML, "does not show tools to the model"),
        (QWEN25, "leaves out tool calls"),
        (templates.ONLY_SHOWN, "leaves out tool calls"),
        (templates.XML, "in an unsupported format"),
        (
            "{{ raise_exception('no') if messages | length > 2 }}{{ messages[0].content }}",
            "does not accept a conversation",
        ),
    ],
)
def test_template_without_tool_calls_is_named(template: str, why: str) -> None:
    made = ChatTemplate(vocabulary(template))
    for _ in range(2):
        with pytest.raises(ToolsUnsupported, match=why):
            made.dialect()
    assert made.render([ASKED]), "a chat without tools must still be rendered"
    made.close()


def test_ids_are_such_as_mistral_takes_and_the_same_in_call_and_answer() -> None:
    made = ChatTemplate(given := vocabulary(templates.MISTRAL))
    made.dialect()
    ids = made.render([ASKED, CALLED, TOOL_RESULT])
    text = str(given.tokenizer.decode([each for each in ids if each not in given.control_ids.values()]))
    (called,) = json.loads(text[text.index("[TOOL_CALLS]") + len("[TOOL_CALLS]") : text.index("[TOOL_RESULTS]")])
    result = json.loads(text[text.index("[TOOL_RESULTS]") + len("[TOOL_RESULTS]") : text.index("[/TOOL_RESULTS]")])
    assert called["id"] == result["call_id"] and len(called["id"]) == 9
    made.close()


def test_template_without_tools_gets_no_tools() -> None:
    assert "# Tools" not in said(templates.QWEN, [ASKED]) and "# Tools" in said(templates.QWEN, [ASKED], (TOOL,))
