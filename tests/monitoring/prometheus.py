"""A real Prometheus from Debian's package, with the scrape configuration of the example."""

import asyncio
import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.board import MONITORING
from tests.patience import PATIENCE
from tests.ports import free_port


def tool(name: str) -> str:
    """Return the path of the tool, or skip the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; it is part of Debian's package prometheus")
    return found


@dataclass
class Prometheus:
    url: str
    process: asyncio.subprocess.Process

    async def get(self, path: str, **query: str) -> Any:
        """Return a reply of the HTTP API. Raises OSError if Prometheus is unreachable or rejects the query."""
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        return await asyncio.to_thread(_get, url)

    async def ask(self, expr: str) -> list[float]:
        """Return the values in the query's result, without NaN."""
        answer = await self.get("/api/v1/query", query=expr)
        assert answer["status"] == "success", (expr, answer)
        values = [float(found["value"][1]) for found in answer["data"]["result"]]
        return [value for value in values if not isnan(value)]


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310  # our own server on loopback
        return json.loads(answer.read() or b"null")


def configured(folder: Path, target: str) -> Path:
    """Write the example configuration with this target and a scrape interval of one second. Return its path."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(MONITORING / "rules.yml")]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [target]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


@asynccontextmanager
async def scraping(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        tool("prometheus"),
        f"--config.file={configured(folder, target)}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    )
    prometheus = Prometheus(f"http://127.0.0.1:{port}", process)
    try:
        async with asyncio.timeout(PATIENCE):
            while not await _is_ready(prometheus.url):
                assert process.returncode is None, "Prometheus exited before it was ready"
                await asyncio.sleep(0.1)
        yield prometheus
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(url: str) -> bool:
    try:
        await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/-/ready", timeout=5).close())  # noqa: S310
    except OSError:
        return False
    return True
