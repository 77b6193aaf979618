"""Light Cone Consistency: places histories and traces in coordinates of closure and order.

`LightCone` judges; `coordinates` has the table of named models, `readability` who can read whose
data, `ratchet` what migration loses, `metadata` what a store must retain to notice an inversion.
"""

from orrery.systems.protocols.light_cone_consistency.checker import LightCone
from orrery.systems.protocols.light_cone_consistency.coordinates import NAMED, Config, Order
from orrery.systems.protocols.light_cone_consistency.traces import Finding, Look, Trace, Write

__all__ = ["NAMED", "Config", "Finding", "LightCone", "Look", "Order", "Trace", "Write"]
