"""An adapter name still resolves if the adapter behind it is replaced during the lookup."""

from collections.abc import Callable

import pytest

from octet.rpc.refusal import Refusal
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.catalog import SimAdapters, UnknownAdapter, lease_adapters


class RacingAdapters(SimAdapters):
    """Calls a function between the lookup of a name and the lease of its digest."""

    def __init__(self, between: Callable[["RacingAdapters"], None]) -> None:
        super().__init__(8)
        self._between = between
        self._names = {"steady": "s", "style": "old"}
        self.held = {"s", "old"}

    def replace(self, digest: str) -> None:
        self.held -= {self._names["style"]}
        self.held |= {digest}
        self._names["style"] = digest

    def acquire(self, digest: str) -> None:
        if digest != "s":
            self._between(self)
        if digest not in self.held:
            raise UnknownAdapter(digest)
        super().acquire(digest)


def test_replaced_name_resolves_to_its_new_digest() -> None:
    adapters = RacingAdapters(lambda self: self.replace("new"))
    digests, release = lease_adapters(adapters, ["steady", "style"])
    assert digests == ("s", "new") and adapters.num_in_use == 2
    release()
    assert adapters.num_in_use == 0


@pytest.mark.parametrize("gone", ["unloaded", "always another"])
def test_unresolvable_name_leaves_no_adapter_in_use(gone: str) -> None:
    count = iter(range(10))

    def between(adapters: RacingAdapters) -> None:
        if gone == "unloaded":
            adapters.unload("style")
            adapters.held -= {"old"}
        else:
            adapters.replace(f"another {next(count)}")

    adapters = RacingAdapters(between)
    with pytest.raises(Refusal) as caught:
        lease_adapters(adapters, ["steady", "style"])
    assert caught.value.error.reason == wire.ERROR_REASON_UNKNOWN_ADAPTER
    assert adapters.num_in_use == 0
