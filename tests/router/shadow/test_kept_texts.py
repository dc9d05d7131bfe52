"""The text of a disagreement is kept only where the configuration allows."""

from dataclasses import replace

import pytest

from octet.config.ensemble import ShadowConfig, StoreConfig
from octet.v1 import operator_pb2 as wire
from router.routing.classifier.base import LIMIT
from tests.router.overview.test_live import running_overview

SECRET = "the launch code is 0000"


@pytest.mark.parametrize(
    ("shadow", "most", "tenant", "agreed", "is_kept"),
    [
        (ShadowConfig(keep_text=True), 10, "ann", False, True),
        (ShadowConfig(), 10, "ann", False, False),
        (ShadowConfig(keep_text=True), 10, "ann", True, False),
        (ShadowConfig(keep_text=True), 0, "ann", False, False),
        (ShadowConfig(keep_text=True, private_tenants=("ann",)), 10, "ann", False, False),
        (ShadowConfig(keep_text=True, private_tenants=("ann",)), 10, "bob", False, True),
    ],
)
async def test_texts_are_kept_only_where_the_configuration_allows(
    shadow: ShadowConfig, most: int, tenant: str, agreed: bool, is_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_overview() as fronted:
        server = fronted.routed.server
        services = server.services
        services.ensemble = replace(services.ensemble, shadow=shadow)
        services.store.reconfigure(StoreConfig("memory", texts=most))
        now = server.environment.wall_ms()
        one = wire.Comparison(request_id="r1", at_unix_ms=now, primary="writer", shadow="coder", agreed=agreed)
        services.compared(one, tenant, SECRET + "." * 10_000)
        await fronted.routed.until(lambda: services.store._held.is_empty)
        (raw,) = [raw async for raw in server.receipts.comparisons(0)]
        kept = wire.Comparison.FromString(raw).text
        assert kept.startswith(SECRET) == is_kept and bool(kept) == is_kept
        assert len(kept) <= LIMIT + 2, "only what the classifier reads is kept"
        metrics = (await fronted.get("/metrics")).body.decode()
        assert SECRET not in metrics and SECRET not in caplog.text
