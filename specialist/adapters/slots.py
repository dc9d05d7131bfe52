"""The adapters that lie on a device: the most recently used ones."""

from collections import OrderedDict

import torch

from specialist.adapters.adapter import Adapter, LowRank


class DeviceSlots:
    """Used by one thread, the engine's. An adapter that loses its slot while a step uses it lives on until its end."""

    def __init__(self, num_slots: int, device: torch.device, dtype: torch.dtype) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, got {num_slots}")
        self.num_slots = num_slots
        self.device = device
        self.dtype = dtype
        self.num_loads = 0
        self.num_evictions = 0
        self._slots: OrderedDict[str, Adapter] = OrderedDict()
        """By digest, least recently used first."""

    def get(self, adapter: Adapter) -> Adapter:
        """The same adapter on the device; where the host copy can be used as it is, that one."""
        resident = self._slots.get(adapter.digest)
        if resident is None:
            resident = self._load(adapter)
        self._slots.move_to_end(adapter.digest)
        return resident

    def digests(self) -> tuple[str, ...]:
        """Of what is resident, least recently used first."""
        return tuple(self._slots)

    def _load(self, adapter: Adapter) -> Adapter:
        if len(self._slots) >= self.num_slots:
            self._slots.popitem(last=False)
            self.num_evictions += 1
        self.num_loads += 1
        self._slots[adapter.digest] = copy_to(adapter, self.device, self.dtype)
        return self._slots[adapter.digest]


def copy_to(adapter: Adapter, device: torch.device, dtype: torch.dtype) -> Adapter:
    """The adapter itself when it is there already, in that type."""
    targets = {
        name: LowRank(low.a.to(device, dtype), low.b.to(device, dtype), low.scale)
        for name, low in adapter.targets.items()
    }
    if all(low.a is adapter.targets[name].a for name, low in targets.items()):
        return adapter
    return Adapter(adapter.digest, targets, adapter.rank)
