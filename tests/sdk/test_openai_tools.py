"""Tool calls through OpenAI's package for Node."""

import shutil
from pathlib import Path

from tests.router.http.test_openai_tools import tooled
from tests.sdk.node import check_modules, compiled, run_tests
from tests.specialist.server.harness import run


def test_tool_call_is_streamed_and_answered(tmp_path: Path) -> None:
    check_modules()
    build = compiled("tools")

    async def scenario() -> None:
        async with tooled(tmp_path) as fronted:
            url = f"http://127.0.0.1:{fronted.port}"
            await run_tests([build / "tests" / "server" / "tools.test.js"], {"OCTET_TEST_URL": url})

    try:
        run(scenario(), 150)
    finally:
        shutil.rmtree(build)
