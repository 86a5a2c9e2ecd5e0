"""Listeners: each counts one thing. To add one, subclass `events.Listener` and hand it to `simulate`."""

from tilewright.simulator.events import Listener
from tilewright.simulator.listeners.bulk_traffic import TmaTraffic
from tilewright.simulator.listeners.divergence import Divergence
from tilewright.simulator.listeners.executions import Executions
from tilewright.simulator.listeners.global_traffic import GlobalTraffic
from tilewright.simulator.listeners.shared_traffic import SharedTraffic
from tilewright.simulator.listeners.site_counter import SiteCounter


def standard_listeners() -> tuple[Listener, ...]:
    """A new set of the listeners that `Counters` is made of."""
    return Executions(), GlobalTraffic(), SharedTraffic(), TmaTraffic(), Divergence()


__all__ = [
    "TmaTraffic",
    "Divergence",
    "Executions",
    "GlobalTraffic",
    "SharedTraffic",
    "SiteCounter",
    "standard_listeners",
]
