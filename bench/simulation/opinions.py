"""What a classifier would say, without one."""

from collections.abc import Sequence

from router.classify.base import ClassifierUnavailable, Distribution


class NoOpinions:
    """Requests say whom they want; whoever does not is told so."""

    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution | None:
        return None

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        raise ClassifierUnavailable("there is none in this simulation")


class ReadOpinions:
    """A text says at its beginning whom it is for and how surely: `NAME PERCENT ...`. The rest goes to the next of the
    names in their order."""

    digest = "1" * 64

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def cached(self, text: str, tenant: str = "") -> Distribution | None:
        return None

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        name, percent, *_ = (*text.split(" ", 2), "", "")
        if name not in self._names or not percent.isdecimal():
            raise ClassifierUnavailable("it cannot read this")
        share = min(100, max(1, int(percent))) / 100
        second = self._names[(self._names.index(name) + 1) % len(self._names)]
        rest = [(second, 1 - share)] if second != name else [("reject", 1 - share)]
        return Distribution.of([(name, share), *rest])
