"""From the structure a request asks for to a guide through it."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import BoundedSemaphore

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
        self._places = BoundedSemaphore(grammars.limits.compiling)
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
        """Each has its own time, from when the thread begins with it; a place is free again when the thread is done."""
        limits = self._grammars.limits
        full = queue_full("having their structure compiled", limits.compiling, None)
        if not self._places.acquire(blocking=False):
            raise full
        begun = asyncio.Event()
        work = self._submit(structure, begun)
        coming = asyncio.wrap_future(work)
        try:
            try:
                await asyncio.wait_for(begun.wait(), limits.seconds * limits.compiling)
            except TimeoutError:
                raise full from None
            return await asyncio.wait_for(coming, limits.seconds)
        except GrammarRefused as refused:
            raise invalid(_field(structure), refused.limit, refused.value) from None
        except TimeoutError:
            limit = f"compiled within {limits.seconds:g} seconds"
            raise invalid(_field(structure), limit, "one that takes longer") from None
        finally:
            coming.cancel()

    def _submit(self, structure: Structure, begun: asyncio.Event) -> Future[Grammar]:
        loop = asyncio.get_running_loop()

        def begin() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(begun.set)

        def compiled() -> Grammar:
            begin()
            return self._grammars.compile(structure)

        def done(_: Future[Grammar]) -> None:
            self._places.release()
            begin()

        work = self._thread.submit(compiled)
        work.add_done_callback(done)
        return work


def _field(structure: Structure) -> str:
    return "tools" if structure.kind == "calls" else f"structure.{structure.kind}"
