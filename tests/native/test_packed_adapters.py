"""Adapters that take turns are each packed only once, and packed adapters stay within the limit on memory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specialist.adapters.adapter import Adapter, read_adapter
from specialist.adapters.store import AdapterStore
from specialist.engines.native.fused_decoder import PackedAdapters
from tests.adapters.peft_files import MODEL, random_tensors, write

COUNT = 16


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return [_read(folder / str(seed), seed) for seed in range(COUNT)]


def _read(directory: Path, seed: int) -> Adapter:
    return read_adapter(write(directory, random_tensors(seed=seed)), MODEL)


def packed(most_bytes: int) -> PackedAdapters:
    return PackedAdapters(MODEL.num_layers, most_bytes, max_rank=8)


def size_of(adapter: Adapter) -> int:
    alone = packed(1 << 30)
    alone.address([adapter])
    return alone.nbytes


def test_sixteen_adapters_that_take_turns_are_packed_once_each(adapters: list[Adapter]) -> None:
    kept = packed(sum(map(size_of, adapters)))
    for _ in range(5):
        for adapter in adapters:
            kept.address([adapter])
    assert kept.num_packs == COUNT


@given(st.lists(st.integers(0, COUNT - 1), max_size=60), st.integers(0, COUNT))
def test_memory_stays_in_its_bound_and_the_most_recent_stay(
    adapters: list[Adapter], turns: list[int], room: int
) -> None:
    bound = room * size_of(adapters[0])
    kept = packed(bound)
    recent: list[int] = []
    for turn in turns:
        before = kept.num_packs
        kept.address([adapters[turn]])
        is_last = recent[-1:] == [turn]
        assert kept.num_packs == before + (turn not in recent[-room:] if room else not is_last)
        assert kept.nbytes <= bound
        recent = [each for each in recent if each != turn] + [turn]


def test_a_stack_larger_than_the_bound_is_whole_while_it_is_used(adapters: list[Adapter]) -> None:
    kept = packed(1)
    assert kept.address(adapters[:3]) == kept.address(adapters[:3])
    assert kept.num_packs == 3
    assert kept.nbytes == 0


def test_content_without_a_name_and_user_is_dropped(tmp_path: Path) -> None:
    store, kept = AdapterStore(MODEL, 4), packed(1 << 30)
    store.when_unused(kept.drop)
    directories = [write(tmp_path / str(seed), random_tensors(seed=seed)) for seed in range(3)]
    first, second = store.load("a", directories[0]), store.load("b", directories[1])
    store.load("alias", directories[0])
    for digest in (first, second):
        kept.address([store.get(digest)])
    alone = size_of(store.get(first))
    store.acquire(first)
    store.unload("a")
    store.unload("alias")
    assert kept.nbytes == 2 * alone, "a step still uses the first adapter"
    store.release(first)
    assert kept.nbytes == alone
    store.load("b", directories[2])
    assert kept.nbytes == 0, "the name refers to another adapter now"
    kept.address([store.get(first)])
    assert kept.num_packs == 3, "the adapter must be packed again"


def test_dropped_weights_last_while_a_stack_reads_them(adapters: list[Adapter]) -> None:
    kept = packed(1 << 30)
    before = kept.address(adapters[:2])
    kept.drop(adapters[0].digest)
    assert kept.address(adapters[:2]) == before and kept.num_packs == 2
