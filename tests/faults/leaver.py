"""A caller with many streams, which a test kills: `python -m tests.faults.leaver ADDRESS N`."""

import asyncio
import sys

from tests.faults.callers import LONGEST, PROMPTS, connected_client
from tests.faults.history import Question


async def main(address: str, number: int) -> None:
    async with connected_client(address) as router:
        asked = [asyncio.create_task(router.ask(Question("writer", PROMPTS[0], LONGEST))) for _ in range(number)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
        print("leaver ready on its way", flush=True)
        while True:
            await asyncio.gather(*(router.ask(Question("writer", PROMPTS[1], LONGEST)) for _ in range(number)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
