"""From the structure a request asks for to a guide through it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from octet.rpc.refusal import invalid, queue_full
from specialist.guide.errors import GrammarRefused
from specialist.guide.grammar import Grammar
from specialist.guide.grammars import Grammars
from specialist.guide.guide import Guide
from specialist.guide.structure import Structure
from specialist.service.ask import Ask
from specialist.tools.calling import Calling


class Forms:
    """Grammars are compiled on a thread of their own: neither tokens nor prompts wait for them."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._num_compiling = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def guide(self, ask: Ask, calling: Calling | None = None) -> Guide | None:
        """None where nothing is asked for. Raises Refusal."""
        structure = ask.structure if calling is None else self._calls(calling)
        if structure is None:
            return None
        grammar = self._grammars.kept(structure) or await self._compiled(structure)
        return Guide(grammar, may_stop=not ask.ignore_eos)

    def _calls(self, calling: Calling) -> Structure | None:
        try:
            return calling.structure(self._grammars.limits.depth)
        except GrammarRefused as refused:
            raise invalid("tools", refused.limit, refused.value) from None

    async def _compiled(self, structure: Structure) -> Grammar:
        limits = self._grammars.limits
        if self._num_compiling >= limits.compiling:
            raise queue_full("having their structure compiled", limits.compiling, None)
        self._num_compiling += 1
        try:
            work = self._thread.submit(self._grammars.compile, structure)
            return await asyncio.wait_for(asyncio.wrap_future(work), limits.seconds * self._num_compiling)
        except GrammarRefused as refused:
            raise invalid(_field(structure), refused.limit, refused.value) from None
        except TimeoutError:
            limit = f"compiled within {limits.seconds:g} seconds"
            raise invalid(_field(structure), limit, "one that takes longer") from None
        finally:
            self._num_compiling -= 1


def _field(structure: Structure) -> str:
    return "tools" if structure.kind == "calls" else f"structure.{structure.kind}"
