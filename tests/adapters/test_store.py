"""A name is moved to a new adapter atomically, an adapter in use stays loaded, and the number of copies never exceeds
the limit."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specialist.adapters import store as module
from specialist.adapters.adapter import Adapter, read_adapter
from specialist.adapters.catalog import AdapterRefused, UnknownAdapter
from specialist.adapters.store import AdapterStore, DeviceSlots
from tests.adapters.peft_files import MODEL, random_tensors, write

CPU = torch.device("cpu")


@pytest.fixture
def directory(tmp_path: Path) -> Callable[[int], Path]:
    return lambda seed: write(tmp_path / str(seed), random_tensors(seed=seed))


def test_a_name_means_what_was_loaded_last(directory: Callable[[int], Path]) -> None:
    store = AdapterStore(MODEL, 4)
    first = store.load("style", directory(1))
    assert store.resolve("style") == first
    second = store.load("style", directory(2))
    assert store.resolve("style") == second != first
    assert store.get(second).digest == second
    assert store.names() == {"style": second}
    store.unload("style")
    with pytest.raises(UnknownAdapter, match="style"):
        store.resolve("style")
    with pytest.raises(UnknownAdapter):
        store.unload("style")


def test_a_refused_adapter_changes_nothing(directory: Callable[[int], Path], tmp_path: Path) -> None:
    store = AdapterStore(MODEL, 4)
    digest = store.load("style", directory(1))
    with pytest.raises(AdapterRefused):
        store.load("style", write(tmp_path / "bad", r=300))
    assert store.names() == {"style": digest} and len(store) == 1


@pytest.mark.parametrize("name", ["", "A", "a/b", "a b", "a\n", "é", "x" * 65, "../x"])
def test_names_are_plain(name: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused) as refused:
        AdapterStore(MODEL, 4).load(name, tmp_path)
    assert refused.value.field == "name"


def test_content_in_use_outlives_its_name(directory: Callable[[int], Path]) -> None:
    store = AdapterStore(MODEL, 2)
    old = store.load("style", directory(1))
    store.acquire(old)
    new = store.load("style", directory(2))
    assert store.get(old).digest == old
    with pytest.raises(AdapterRefused, match="the limit of 2 adapters with a name or in use"):
        store.load("other", directory(3))
    assert store.names() == {"style": new}
    store.release(old)
    store.load("other", directory(3))
    with pytest.raises(UnknownAdapter):
        store.get(old)
    with pytest.raises(UnknownAdapter):
        store.acquire(old)
    with pytest.raises(ValueError, match="more often"):
        store.release(old)


def test_a_name_is_replaced_though_the_store_is_full(directory: Callable[[int], Path]) -> None:
    store = AdapterStore(MODEL, 1)
    store.load("style", directory(1))
    assert store.load("style", directory(2)) == store.resolve("style")
    assert len(store) == 1


class StoreMachine(RuleBasedStateMachine):
    """Compares the store with a simple model. The store must hold every named or pinned adapter and never exceed its
    limit on copies."""

    LIMIT = 3

    def __init__(self) -> None:
        super().__init__()
        self.store = AdapterStore(MODEL, self.LIMIT)
        self.names: dict[str, str] = {}
        self.pins: list[str] = []

    @rule(name=st.sampled_from("abcd"), content=st.integers(0, 5))
    def load(self, name: str, content: int) -> None:
        digest = str(content)
        needed = {held for other, held in self.names.items() if other != name} | {*self.pins, digest}
        try:
            assert self.store.load(name, Path(digest)) == digest
        except AdapterRefused:
            assert len(needed) > self.LIMIT
        else:
            self.names[name] = digest

    @rule(name=st.sampled_from("abcd"))
    def unload(self, name: str) -> None:
        if self.names.pop(name, None) is not None:
            self.store.unload(name)

    @rule(name=st.sampled_from("abcd"))
    def acquire(self, name: str) -> None:
        if name in self.names:
            self.store.acquire(self.store.resolve(name))
            self.pins.append(self.names[name])

    @rule()
    def release(self) -> None:
        if self.pins:
            self.store.release(self.pins.pop(0))

    @invariant()
    def what_is_needed_is_held(self) -> None:
        assert self.store.names() == self.names
        assert len(self.store) <= self.LIMIT
        for digest in {*self.pins, *self.names.values()}:
            assert self.store.get(digest).digest == digest


def test_the_store_equals_a_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_adapter", lambda directory, model: Adapter(str(directory), {}, 1))
    machine = settings(max_examples=60, stateful_step_count=30)
    StoreMachine.TestCase.settings = machine
    StoreMachine.TestCase("runTest").runTest()


def test_concurrent_replacement_and_use_never_miss_an_adapter(directory: Callable[[int], Path]) -> None:
    store = AdapterStore(MODEL, 8)
    places = [directory(seed) for seed in range(2)]
    store.load("style", places[0])
    faults: list[Exception] = []

    def replace() -> None:
        for i in range(60):
            store.load("style", places[i % 2])

    def use() -> None:
        try:
            for _ in range(600):
                digest = store.resolve("style")
                store.acquire(digest)
                store.get(digest)
                store.release(digest)
        except Exception as error:
            faults.append(error)

    threads = [Thread(target=replace), *(Thread(target=use) for _ in range(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_slots_keep_the_most_recently_used(directory: Callable[[int], Path]) -> None:
    adapters = [read_adapter(directory(seed), MODEL) for seed in range(3)]
    slots = DeviceSlots(2, CPU, torch.float32)
    for index in (0, 1, 0, 2, 0, 1):
        assert slots.get(adapters[index]) is adapters[index]
    assert slots.digests() == (adapters[0].digest, adapters[1].digest)
    assert (slots.num_loads, slots.num_evictions) == (4, 2)


def test_a_slot_holds_the_type_the_device_computes_in(directory: Callable[[int], Path]) -> None:
    adapter = read_adapter(directory(0), MODEL)
    resident = DeviceSlots(1, CPU, torch.bfloat16).get(adapter)
    assert resident.digest == adapter.digest and resident.nbytes * 2 == adapter.nbytes
    for name, low in resident.targets.items():
        assert torch.equal(low.a, adapter.targets[name].a.bfloat16()) and low.scale == adapter.targets[name].scale


@pytest.mark.parametrize("number", [0, -1])
def test_the_limit_is_at_least_one(number: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        AdapterStore(MODEL, number)
    with pytest.raises(ValueError, match="at least 1"):
        DeviceSlots(number, CPU, torch.float32)
