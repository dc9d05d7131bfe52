"""Model and adapter files from untrusted sources."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from specialist.adapters.adapter import CONFIG, TENSORS, read_adapter
from specialist.adapters.catalog import AdapterRefused
from specialist.models.fields import ModelRefused
from specialist.models.gguf import open_gguf
from tests.adapters.peft_files import MODEL, SETTINGS, write
from tests.fuzz.files import read_as, scratch
from tests.fuzz.parser import Parser
from tests.models.gguf_writer import tiny_metadata, tiny_tensors, write_gguf


def _gguf(kind: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(path, tiny_metadata(), tiny_tensors(kind))
        return path.read_bytes()


def _adapter() -> tuple[bytes, bytes]:
    with TemporaryDirectory() as folder:
        directory = write(Path(folder) / "adapter")
        return (directory / CONFIG).read_bytes(), (directory / TENSORS).read_bytes()


def _progress(_what: str, _done: int, _total: int) -> None: ...


_SETTINGS, _NUMBERS = _adapter()
_RICH = json.dumps(
    {**SETTINGS, "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"down_proj": 2.5}, "layers_to_transform": [0, 1]}
).encode()


def _opened(path: Path) -> object:
    return open_gguf(path, _progress)


def _with(config: bytes, tensors: bytes) -> object:
    directory = scratch() / "adapter"
    directory.mkdir(exist_ok=True)
    (directory / CONFIG).write_bytes(config)
    (directory / TENSORS).write_bytes(tensors)
    return read_adapter(directory, MODEL)


PARSERS = [
    Parser(
        "model.gguf",
        read_as(_opened, "model.gguf"),
        (ModelRefused,),
        (_gguf("Q8_0"), _gguf("F16")),
        words=(b"tokenizer.ggml.tokens", b"general.alignment", b"llama.block_count"),
        share=0.3,
    ),
    Parser("adapter.config", lambda raw: _with(raw, _NUMBERS), (AdapterRefused,), (_SETTINGS, _RICH), "json"),
    Parser(
        "adapter.tensors",
        lambda raw: _with(_SETTINGS, raw),
        (AdapterRefused,),
        (_NUMBERS,),
        words=(b'"dtype":"F64"', b'"data_offsets":[0,0]', b"__metadata__", b'"shape":[-1]'),
    ),
]
