"""`octet.v1.Specialist`: its eight calls."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc

from octet import __version__
from octet.rpc.calls import Context, streaming, unary, write
from octet.rpc.refusal import adapter_refused, caller_stalled, unknown_adapter
from octet.telemetry.page import Page
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.digest import check_digest
from specialist.adapters.errors import AdapterRefused, UnknownAdapter
from specialist.service.adapters import below
from specialist.service.board import LoadBoard, Watch
from specialist.service.generate import Generator
from specialist.service.replica import Replica
from specialist.service.reply import lane_of, residents_of
from specialist.service.settings import ServiceSettings
from specialist.service.validate import Validator

NAME: str = wire.DESCRIPTOR.services_by_name["Specialist"].full_name


class SpecialistService:
    def __init__(
        self,
        replica: Replica,
        settings: ServiceSettings,
        validator: Validator,
        generator: Generator,
        board: LoadBoard,
        tell_health: Callable[[], Awaitable[None]],
        page: Page,
    ) -> None:
        """`tell_health` says to the world whether anything new is taken."""
        self._replica = replica
        self._settings = settings
        self._validator = validator
        self._generator = generator
        self._board = board
        self._loading = asyncio.Lock()
        self._tell_health = tell_health
        self._page = page

    def handler(self) -> Any:
        most = self._validator.limits.request_bytes
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "Generate": streaming(wire.GenerateRequest, wire.GenerateEvent, self._generator.generate, most),
                "WatchLoad": streaming(wire.WatchLoadRequest, wire.LoadReport, self._watch_load, most),
                "LoadAdapter": unary(wire.LoadAdapterRequest, wire.LoadAdapterResponse, self._load_adapter, most),
                "UnloadAdapter": unary(
                    wire.UnloadAdapterRequest, wire.UnloadAdapterResponse, self._unload_adapter, most
                ),
                "Drain": unary(wire.DrainRequest, wire.DrainResponse, self._drain, most),
                "CountTokens": unary(wire.GenerateRequest, wire.CountTokensResponse, self._generator.count, most),
                "Describe": unary(wire.DescribeRequest, wire.DescribeResponse, self._describe, most),
                "GetMetrics": unary(wire.GetMetricsRequest, wire.GetMetricsResponse, self._get_metrics, most),
            },
        )

    async def _watch_load(self, ask: wire.WatchLoadRequest, context: Context) -> None:
        heartbeat = self._validator.watch_heartbeat(ask)
        interval = min(heartbeat, self._validator.watch_interval(ask, self._settings.watch_seconds))
        with Watch(self._board, heartbeat) as watch:
            while (report := await watch.next()) is not None:
                if not await write(context, report, self._settings.stall_seconds):
                    raise caller_stalled(f"nothing was taken for {self._settings.stall_seconds:g} s")
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval):
                        await self._board.closed.wait()

    async def _load_adapter(self, ask: wire.LoadAdapterRequest) -> wire.LoadAdapterResponse:
        name = self._validator.adapter_name(ask.name)
        path = self._validator.adapter_path(ask.path)
        pinned = self._validator.adapter_digest(ask.digest)
        try:
            async with self._loading:  # one at a time: a load is as large as the caller made it
                digest = await asyncio.to_thread(self._load_from, name, path, self._pinned(name, pinned))
        except AdapterRefused as refused:
            raise adapter_refused(refused.field, refused.why) from None
        self._board.changed()
        return wire.LoadAdapterResponse(adapter=wire.ResidentAdapter(name=name, digest=digest))

    def _pinned(self, name: str, asked: str) -> str:
        """Which adapter it must be, by whoever said so; empty: any. Raises AdapterRefused where they differ."""
        configured = self._settings.adapter_digests.get(name, "")
        if configured and asked:
            check_digest(name, asked, configured)
        return configured or asked

    def _load_from(self, name: str, path: str, pinned: str) -> str:
        """On a thread of its own: disks are slow."""
        return self._replica.adapters.load(name, below(self._settings.adapter_root, path), pinned)

    async def _unload_adapter(self, ask: wire.UnloadAdapterRequest) -> wire.UnloadAdapterResponse:
        name = self._validator.adapter_name(ask.name)
        try:
            self._replica.adapters.unload(name)
        except UnknownAdapter:
            raise unknown_adapter(name) from None
        self._board.changed()
        return wire.UnloadAdapterResponse()

    async def _drain(self, _: wire.DrainRequest) -> wire.DrainResponse:
        return wire.DrainResponse(finished=await self.drain())

    async def drain(self) -> int:
        """Refuse what is new, finish what is not. How many requests that were."""
        self._board.draining = True
        self._board.changed()
        self._generator.shut()
        await self._tell_health()
        return await self._generator.drain()

    async def _get_metrics(self, _: wire.GetMetricsRequest) -> wire.GetMetricsResponse:
        return wire.GetMetricsResponse(text=(await self._page.write("")).body)

    async def _describe(self, _: wire.DescribeRequest) -> wire.DescribeResponse:
        replica, pool = self._replica, self._replica.scheduler.pool
        return wire.DescribeResponse(
            lane=lane_of(replica.lane),
            version=__version__,
            model=replica.model,
            kernels=replica.kernels,
            context=replica.context,
            block_size=pool.block_size,
            num_blocks=pool.capacity,
            adapters=residents_of(replica.adapters.names()),
            limits=[wire.Limit(field=field, limit=limit) for field, limit in self._validator.limits.described()],
            engine=replica.engine_name,
        )
