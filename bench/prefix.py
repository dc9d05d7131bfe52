"""Looking up a prompt's prefix, and the hashing that no lookup can do without."""

from hashlib import sha256

from bench.measure import Work
from bench.pool_states import hold, new_chain, new_pool, new_tokens
from kvpool import TokenChain


class Lookup:
    """A prompt that has not been hashed yet meets a pool that has cached all of it, or none."""

    def __init__(self, length: int, block_size: int, *, cached: bool) -> None:
        self._length = length
        self._block_size = block_size
        self.pool = new_pool(length // block_size + 1, block_size)
        if cached:
            self.pool.release(hold(self.pool, self._new_chain()))

    def ready(self) -> Work:
        chain = self._new_chain()
        return lambda: self.pool.admit(chain, self._length)

    def _new_chain(self) -> TokenChain:
        return new_chain(0, self._length, self._block_size)


class BareHash:
    """sha256 over the same bytes, chained in the same way, and nothing else."""

    def __init__(self, length: int, block_size: int) -> None:
        tokens = new_tokens(0, length)
        num_blocks = (length - 1) // block_size
        self._pieces = [tokens[i * block_size : (i + 1) * block_size].tobytes() for i in range(num_blocks)]

    def ready(self) -> Work:
        return self._hash

    def _hash(self) -> bytes:
        key = bytes(32)
        for piece in self._pieces:
            key = sha256(key + piece).digest()
        return key
