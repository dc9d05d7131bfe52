"""The host tier of the prefix cache: a bounded number of evicted blocks, whose content stays in host memory."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from kvpool.block import GARBAGE, Block, BlockId, BlockKey, HostBlock, InvariantViolation


class BlockCopy(NamedTuple):
    """A pair of a device block and a place in host memory."""

    block_id: BlockId
    place: int


class BlockStore(Protocol):
    """Host memory for the content of blocks. A call never names a block or a place twice. Whatever is computed on the
    device after a call sees its effect, and whatever was computed before it does not."""

    def spill(self, copies: Sequence[BlockCopy]) -> None:
        """Copy from the device to host memory. After an error, the same copies are ordered again."""

    def restore(self, copies: Sequence[BlockCopy]) -> None:
        """Copy from host memory to the device. After an error, the same copies are ordered again."""


class HostCache:
    """At most `capacity` blocks by key, least recently used first out. The pool orders copies while a step is planned;
    `copy_pending()` makes them before the step runs: first all to the host, then all to the device. A block that was
    restored stays here as well, as the first to go, so that evicting it again copies nothing."""

    def __init__(self, capacity: int, store: BlockStore) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self.blocks: dict[BlockKey, HostBlock] = {}
        self.to_spill: dict[int, BlockId] = {}
        """Ordered copies to the host, by place. Until they are made, nothing may change these blocks."""
        self.to_restore: dict[BlockId, HostBlock] = {}
        """Ordered copies to the device. Until they are made, these host blocks are not dropped."""
        self.num_spilled = 0
        self.num_restored = 0
        self.num_dropped = 0  # blocks that left host memory, or for which it had no room
        self._store = store
        self._droppable: OrderedDict[BlockKey, HostBlock] = OrderedDict()  # the first to go comes first

    def keep(self, block: Block, key: BlockKey) -> BlockKey | None:
        """Keep the content of a block that is being evicted. Return the key of what is lost instead, if anything is."""
        unread = self.to_restore.pop(block.block_id, None)
        if unread is not None:
            self._droppable[key] = unread
            return None
        if key in self.blocks:
            self._droppable.move_to_end(key)
            return None
        lost, place = None, len(self.blocks)
        if place == self.capacity:
            self.num_dropped += 1
            if not self._droppable:
                return key
            lost, oldest = self._droppable.popitem(last=False)
            del self.blocks[lost]
            place = oldest.place
        self.blocks[key] = self._droppable[key] = HostBlock(place, key, block.tokens)
        self.to_spill[place] = block.block_id
        return lost

    def hold(self, found: Collection[HostBlock]) -> None:
        """Drop none of these blocks before `restore` is called for each of them and its copy is made."""
        for each in found:
            del self._droppable[each.key]

    def restore(self, found: HostBlock, block: Block) -> None:
        """Order the content of `found` to be copied to `block`."""
        self.to_restore[block.block_id] = found

    def copy_pending(self) -> None:
        """Make the copies that were ordered. If this raises, those that may not have been made stay ordered, and no
        step may run before another call succeeds."""
        if self.to_spill:
            self._store.spill([BlockCopy(block_id, place) for place, block_id in self.to_spill.items()])
            self.num_spilled += len(self.to_spill)
            self.to_spill.clear()
        if self.to_restore:
            self._store.restore([BlockCopy(block_id, found.place) for block_id, found in self.to_restore.items()])
            self.num_restored += len(self.to_restore)
            for found in self.to_restore.values():  # the last block of a sequence goes first
                self._droppable[found.key] = found
                self._droppable.move_to_end(found.key, last=False)
            self.to_restore.clear()

    def check(self, blocks: Sequence[Block], index: Mapping[BlockKey, Block]) -> None:
        """Check every invariant and raise InvariantViolation if one is broken. `index` has the keyed device blocks."""
        self._check_places()
        for key, found in self.blocks.items():
            if key in index and index[key].tokens != found.tokens:
                raise InvariantViolation(f"{index[key]} and {found} have the same key and other tokens")
        for block_id, found in self.to_restore.items():
            if index.get(found.key) is not blocks[block_id]:
                raise InvariantViolation(f"{found} is to be restored to {blocks[block_id]}, which has another key")
        sources = list(self.to_spill.values())
        if len(set(sources)) != len(sources) or GARBAGE in sources:
            raise InvariantViolation(f"blocks {sources} are to be spilled: one of them twice, or block 0")
        for block_id in sources:
            if blocks[block_id].key is not None and block_id not in self.to_restore:
                raise InvariantViolation(f"{blocks[block_id]} is cached again before its old content was spilled")

    def _check_places(self) -> None:
        places = {found.place for found in self.blocks.values()}
        if len(places) != len(self.blocks) or len(places) > self.capacity or not places <= {*range(len(places))}:
            raise InvariantViolation(f"{len(self.blocks)} host blocks have the places {sorted(places)}")
        if any(found.key != key for key, found in self.blocks.items()):
            raise InvariantViolation("a host block is filed under another key")
        if not self.to_spill.keys() <= places:
            raise InvariantViolation("a block is to be spilled to a place that holds no block")
        held = {found.key: found for found in self.to_restore.values()}
        if len(held) != len(self.to_restore) or held.keys() & self._droppable.keys():
            raise InvariantViolation("a host block that is to be restored twice, or may be dropped before")
        if held | self._droppable != self.blocks:
            raise InvariantViolation(f"{len(self.blocks)} host blocks: {len(held)} held, {len(self._droppable)} not")
