"""The vocabulary of the sim engine."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specialist.models.checkpoint import Vocabulary
from specialist.text.tokenization import CHARACTER_OF

_PRINTABLE = [*range(0x20, 0x7F), 0x0A]
END, TURN, TURN_END = "<|end|>", "<|turn|>", "<|turn_end|>"
# The model samples printable bytes and the end of the text; other bytes occur only in prompts.
NUM_SAMPLED = len(_PRINTABLE) + 1

_TEMPLATE = (
    "{% for message in messages %}"
    f"{TURN}{{{{ message.role }}}}\n{{{{ message.content }}}}{TURN_END}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{TURN}assistant\n{{% endif %}}"
)


def sim_vocabulary() -> Vocabulary:
    order = [CHARACTER_OF[byte] for byte in _PRINTABLE] + [END]
    order += [CHARACTER_OF[byte] for byte in range(256) if byte not in _PRINTABLE] + [TURN, TURN_END]
    ids = {text: token_id for token_id, text in enumerate(order)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = {text: ids[text] for text in (END, TURN, TURN_END)}
    return Vocabulary(tokenizer, control, bos_id=None, eos_ids=frozenset({ids[END]}), chat_template=_TEMPLATE)
