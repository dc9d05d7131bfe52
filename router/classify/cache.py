"""Opinions that need not be formed again."""

from collections import OrderedDict

from router.classify.base import Distribution


class OpinionCache:
    """The opinions asked for last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._opinions: OrderedDict[bytes, Distribution] = OrderedDict()

    def get(self, key: bytes) -> Distribution | None:
        opinion = self._opinions.get(key)
        if opinion is not None:
            self._opinions.move_to_end(key)
        return opinion

    def put(self, key: bytes, opinion: Distribution) -> None:
        self._opinions[key] = opinion
        self._opinions.move_to_end(key)
        if len(self._opinions) > self._size:
            self._opinions.popitem(last=False)
