"""Where the estimator starts from: what was calibrated for a simulation says what steps cost."""

from pathlib import Path

from admission.forecast import Prices
from specialist.engines.sim.calibration import cost_model_from_json
from specialist.engines.sim.cost import CostModel


def prices_of(cost: CostModel) -> Prices:
    return Prices(
        prefill_step=cost.prefill_step,
        prefill_token=cost.prefill_token,
        prefill_pair=cost.prefill_pair,
        decode_step=cost.decode_step,
        decode_token=cost.decode_token,
        decode_pair=cost.decode_pair,
        switch=cost.adapter_switch,
    )


def calibrated_prices(file: Path | None) -> Prices | None:
    """Raises CalibrationInvalid, OSError. None without a file: then everything is learnt from the first steps on."""
    return None if file is None else prices_of(cost_model_from_json(file.read_text()))
