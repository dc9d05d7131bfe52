"""The grammars of one replica: compiled when first asked for, the most recent kept."""

from collections import OrderedDict
from threading import Lock

from specialist.guide.grammar import Grammar
from specialist.guide.limits import GuideLimits
from specialist.guide.structure import Structure
from specialist.guide.table import Table
from specialist.models.checkpoint import Vocabulary


class Grammars:
    """Threads may share it."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, limits: GuideLimits | None = None) -> None:
        self.limits = limits or GuideLimits()
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._table: Table | None = None
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        self._making = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def kept(self, structure: Structure) -> Grammar | None:
        """At once, or not at all."""
        key = structure.digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def compile(self, structure: Structure) -> Grammar:
        """Raises GrammarRefused. Takes its time, and leaves other threads the interpreter meanwhile."""
        grammar = self.kept(structure) or Grammar(structure, self.table(), self.limits)
        with self._lock:
            self._keep(structure.digest(), grammar)
        return grammar

    def table(self) -> Table:
        """Made once, when first needed."""
        with self._making:
            if self._table is None:
                self._table = Table(self._vocabulary, self._vocab_size)
            return self._table

    def _keep(self, key: str, grammar: Grammar) -> None:
        if key in self._kept:
            return
        self._kept[key] = grammar
        self._num_bytes += grammar.num_bytes
        while len(self._kept) > self.limits.kept or self._num_bytes > self.limits.kept_bytes:
            self._num_bytes -= self._kept.popitem(last=False)[1].num_bytes
