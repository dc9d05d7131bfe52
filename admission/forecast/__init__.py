"""The verdict on a request: what is there to do, how long it takes, who would be late."""

from admission.forecast.booking import Booking
from admission.forecast.desk import Desk
from admission.forecast.errors import EstimateErrors
from admission.forecast.estimator import Estimator
from admission.forecast.prices import Prices
from admission.forecast.room import Room
from admission.forecast.shape import Shape
from admission.forecast.sweep import SWEEP_SECONDS, Sweep
from admission.forecast.under_way import UnderWay
from admission.forecast.verdict import Admit, Outlook, Refuse, Verdict

__all__ = [
    "SWEEP_SECONDS",
    "Admit",
    "Booking",
    "Desk",
    "EstimateErrors",
    "Estimator",
    "Outlook",
    "Prices",
    "Refuse",
    "Room",
    "Shape",
    "Sweep",
    "UnderWay",
    "Verdict",
]
