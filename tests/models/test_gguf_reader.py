"""A GGUF file is read exactly or refused; it never causes a crash, a hang or a huge allocation."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specialist.models.fields import ModelRefused
from specialist.models.gguf_reader import read_gguf
from specialist.models.open import open_checkpoint
from specialist.models.weights import dense
from tests.models.gguf_writer import Blob, Value, tiny_gguf, tiny_metadata, tiny_tensors, write_gguf

KINDS = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "BF16")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_what_is_written_is_read(tmp_path: Path, version: int, alignment: int) -> None:
    metadata: dict[str, Value] = {"a": "text", "b": 7, "c": True, "d": 0.5, "e": ["x", "y"], "f": [1, -2], "g": [0.25]}
    tensors = {"one": Blob("F32", (2, 3), bytes(range(24))), "two": Blob("F16", (5,), bytes(range(10)))}
    path = tmp_path / "m.gguf"
    write_gguf(path, {**metadata, "general.alignment": alignment}, tensors, version=version, alignment=alignment)
    file = read_gguf(path)
    assert file.metadata == {**metadata, "general.alignment": alignment}
    for name, blob in tensors.items():
        stored = file.tensors[name]
        assert (stored.kind.name, stored.shape, stored.data.tobytes()) == blob


def header(num_tensors: int, num_entries: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries) + rest


def entry(kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + value


def tensor(sizes: list[int], kind: int = 0, offset: int = 0, dimensions: int | None = None) -> bytes:
    described = struct.pack("<Q", 1) + b"t" + struct.pack("<I", len(sizes) if dimensions is None else dimensions)
    return described + struct.pack(f"<{len(sizes)}QIQ", *sizes, kind, offset)


HUGE = 2**63
NONSENSE = {
    "empty": b"",
    "short": b"GG",
    "other magic": b"PK\3\4" + bytes(100),
    "version 1": header(0, 0, version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "no counts": b"GGUF\3\0\0\0",
    "more tensors than bytes": header(HUGE, 0),
    "more entries than bytes": header(0, HUGE),
    "a key longer than the file": header(0, 1, struct.pack("<Q", HUGE) + bytes(16)),
    "an empty key": header(0, 1, struct.pack("<QIB", 0, 0, 1) + bytes(8)),
    "a key that is not UTF-8": header(0, 1, struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 1)),
    "a type that does not exist": header(0, 1, entry(13, bytes(8))),
    "an array of arrays": header(0, 1, entry(9, struct.pack("<IQ", 9, 1) + bytes(64))),
    "an array longer than the file": header(0, 1, entry(9, struct.pack("<IQ", 4, HUGE))),
    "texts longer than the file": header(0, 1, entry(9, struct.pack("<IQ", 8, HUGE))),
    "a text longer than the file": header(0, 1, entry(8, struct.pack("<Q", HUGE))),
    "the same key twice": header(0, 2, entry(0, b"\1") * 2),
    "no dimensions": header(1, 0, tensor([], dimensions=0) + bytes(64)),
    "many dimensions": header(1, 0, tensor([1] * 5) + bytes(64)),
    "a size of nought": header(1, 0, tensor([0]) + bytes(64)),
    "a size beyond all bytes": header(1, 0, tensor([HUGE, HUGE]) + bytes(64)),
    "an offset beyond the file": header(1, 0, tensor([1], offset=HUGE) + bytes(64)),
    "an offset between": header(1, 0, tensor([1], offset=4) + bytes(64)),
    "half a block": header(1, 0, tensor([16], kind=2) + bytes(64)),
    "an unknown format": header(1, 0, tensor([1], kind=200) + bytes(64)),
    "a known format that is not supported": header(1, 0, tensor([256], kind=10) + bytes(640)),
    "the same tensor twice": header(2, 0, tensor([8]) + tensor([8], offset=32) + bytes(128)),
    "overlapping tensors": header(2, 0, tensor([16]) + tensor([8], offset=32).replace(b"t", b"u") + bytes(128)),
}


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE.keys())
def test_invalid_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelRefused):
        read_gguf(path)


@pytest.mark.parametrize("alignment", [0, 1, 7, 24, 1 << 21])
def test_an_invalid_alignment_is_refused(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.alignment": alignment}, {})
    with pytest.raises(ModelRefused, match="alignment"):
        read_gguf(path)


def refused_or_finite(path: Path) -> bool:
    """Return whether the file is refused. If it is accepted, check that its weights are finite and its tokenizer
    works."""
    try:
        checkpoint = open_checkpoint(path)
    except ModelRefused:
        return True
    assert all(bool(torch.isfinite(dense(weight)).all()) for weight in checkpoint.weights.values())
    checkpoint.vocabulary.tokenizer.encode("the <|im_start|> end \N{GREEK SMALL LETTER ALPHA}")
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    directory = tmp_path_factory.mktemp("whole")
    files = {kind: tiny_gguf(directory / f"{kind}.gguf", kind).read_bytes() for kind in ("F16", "Q4_1", "Q8_0")}
    return files.__getitem__


@settings(max_examples=150)
@given(kind=st.sampled_from(("F16", "Q4_1", "Q8_0")), data=st.data())
def test_flipped_bits_are_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, whole: Callable[[str], bytes], kind: str, data: st.DataObject
) -> None:
    content = bytearray(whole(kind))
    in_header = st.integers(0, 8 * 9_000)
    anywhere = st.integers(0, 8 * len(content) - 1)
    for bit in data.draw(st.lists(st.one_of(in_header, anywhere), min_size=1, max_size=4)):
        content[bit // 8] ^= 1 << bit % 8
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(content)
    refused_or_finite(path)


def test_every_truncation_is_refused(tmp_path: Path, whole: Callable[[str], bytes]) -> None:
    content, path = whole("Q8_0"), tmp_path / "cut.gguf"
    padding = 32  # The last tensor may end up to one alignment unit before the end of the file.
    lengths = [*range(0, 200), *range(200, len(content) - padding, 997)]
    for length in lengths:
        path.write_bytes(content[:length])
        with pytest.raises(ModelRefused):
            open_checkpoint(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_every_format_makes_a_model(tmp_path: Path, kind: str, architecture: str) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "m.gguf", kind, architecture, tied=architecture == "llama"))
    assert checkpoint.config.tied_head == (architecture == "llama") == ("head" not in checkpoint.weights)
    assert checkpoint.config.qkv_bias == (architecture == "qwen2")
    assert all(bool(torch.isfinite(dense(weight)).all()) for weight in checkpoint.weights.values())


def test_a_damaged_demo_model_is_refused(demo_gguf: Path, tmp_path: Path) -> None:
    content = bytearray(demo_gguf.read_bytes())
    at = content.index(b"blk.0.attn_norm.weight")
    content[at + len(b"blk.0.attn_norm.weight") + 4] ^= 1  # this byte is part of the tensor's size
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelRefused, match="overlaps the tensor before"):
        open_checkpoint(path)
    path.write_bytes(demo_gguf.read_bytes()[:-1_000_000])
    with pytest.raises(ModelRefused, match="damaged"):
        open_checkpoint(path)


def test_metadata_and_tensors_may_disagree_in_no_way(tmp_path: Path) -> None:
    tensors = tiny_tensors("F32")
    del tensors["blk.1.ffn_up.weight"]
    write_gguf(tmp_path / "m.gguf", tiny_metadata(), tensors)
    with pytest.raises(ModelRefused, match=r"layers\.1\.up is missing"):
        open_checkpoint(tmp_path / "m.gguf")
