"""The adapters that a replica holds in memory and on its device."""

import re
from collections import OrderedDict
from pathlib import Path

import torch

from specialist.adapters.adapter import Adapter, LowRank, read_adapter
from specialist.adapters.catalog import AdapterCatalog, AdapterRefused, check_digest
from specialist.models.checkpoint import ModelConfig


class DeviceSlots:
    """Keeps the most recently used adapters on a device. Only the engine's thread uses it. An adapter that loses its
    slot during a step stays valid until the step ends."""

    def __init__(self, num_slots: int, device: torch.device, dtype: torch.dtype) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, got {num_slots}")
        self.num_slots = num_slots
        self.device = device
        self.dtype = dtype
        self.num_loads = 0
        self.num_evictions = 0
        self._slots: OrderedDict[str, Adapter] = OrderedDict()  # by digest, least recently used first

    def get(self, adapter: Adapter) -> Adapter:
        if adapter.digest not in self._slots:
            if len(self._slots) >= self.num_slots:
                self._slots.popitem(last=False)
                self.num_evictions += 1
            self.num_loads += 1
            self._slots[adapter.digest] = copy_to(adapter, self.device, self.dtype)
        self._slots.move_to_end(adapter.digest)
        return self._slots[adapter.digest]

    def digests(self) -> tuple[str, ...]:
        return tuple(self._slots)


def copy_to(adapter: Adapter, device: torch.device, dtype: torch.dtype) -> Adapter:
    """Return a copy of the adapter on that device and in that type, or the adapter itself if it is there already."""
    targets = {
        name: LowRank(low.a.to(device, dtype), low.b.to(device, dtype), low.scale)
        for name, low in adapter.targets.items()
    }
    if all(low.a is adapter.targets[name].a for name, low in targets.items()):
        return adapter
    return Adapter(adapter.digest, targets, adapter.rank)


ADAPTER_NAME = re.compile(r"[a-z0-9._-]{1,64}")


class AdapterStore(AdapterCatalog):
    """Holds adapters in host memory, by name and by digest. Thread-safe. When it is full, a new adapter replaces the
    least recently used adapter that has no name and is not in use."""

    def __init__(self, model: ModelConfig, max_adapters: int) -> None:
        if max_adapters < 1:
            raise ValueError(f"max_adapters must be at least 1, got {max_adapters}")
        super().__init__()
        self.model = model
        self.max_adapters = max_adapters
        self._held: OrderedDict[str, Adapter] = OrderedDict()  # by digest, least recently used first

    def load(self, name: str, directory: Path, pinned: str = "") -> str:
        """Read and check an adapter, then give it the name atomically. Requests that acquired the previous adapter keep
        it."""
        if not ADAPTER_NAME.fullmatch(name):
            raise AdapterRefused("name", f"must match {ADAPTER_NAME.pattern}, got {name!r:.80}")
        adapter = read_adapter(directory, self.model)
        check_digest(name, adapter.digest, pinned)
        with self._lock:
            self._make_room(adapter.digest, name)
            self._held.setdefault(adapter.digest, adapter)
            self._held.move_to_end(adapter.digest)
            before = self._names.get(name)
            self._names[name] = adapter.digest
        if before is not None:
            self._report_if_unused(before)
        return adapter.digest

    def get(self, digest: str) -> Adapter:
        with self._lock:
            self._require(digest)
            self._held.move_to_end(digest)
            return self._held[digest]

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)

    def _is_held(self, digest: str) -> bool:
        return digest in self._held

    def _make_room(self, digest: str, name: str) -> None:
        if digest in self._held or len(self._held) < self.max_adapters:
            return
        kept = self._pins.keys() | {held for other, held in self._names.items() if other != name}
        unused = next((held for held in self._held if held not in kept), None)
        if unused is None:
            limit = f"the limit of {self.max_adapters} adapters with a name or in use is reached: unload one first"
            raise AdapterRefused("max_adapters", limit)
        del self._held[unused]
