"""What surrounds the machines: object stores, clocks, power and prices."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from orrery.world.hardware import lookup
from orrery.world.spec import NonNegative, Positive, Spec, Text, build


class ObjectStore(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A store of whole objects, with a price for each request; the defaults are Amazon S3's."""

    label: ClassVar[str] = "store"
    get_latency_s: NonNegative = 0.1
    put_latency_s: NonNegative = 0.15
    bandwidth_Bps: Positive = 90e6
    get_price: NonNegative = 0.0000004
    put_price: NonNegative = 0.000005
    storage_price_per_GB_month: NonNegative = 0.023
    conditional_put: bool = True
    source: Text = "Amazon S3 Standard, us-east-1, 2024 price list and performance guide"


class Clocks(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the clocks of the nodes are off.

    skew_s    each node's clock starts off by a uniform amount in [-skew_s, skew_s]
    drift     and runs fast or slow by a uniform fraction in [-drift, drift]; a quartz has 50e-6
    """

    label: ClassVar[str] = "clocks"
    skew_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    drift: Annotated[float, Meta(ge=0, lt=1)] = 0.0


class Power(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a joule in a machine costs outside it."""

    label: ClassVar[str] = "power"
    pue: Annotated[float, Meta(ge=1, le=10)] = 1.58
    carbon_g_per_kWh: NonNegative = 481.0
    source: Text = "Uptime Institute survey 2023: mean PUE 1.58; Ember 2024: world mean of 2023"


class Prices(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What energy and traffic cost; machines and stores carry their own prices."""

    label: ClassVar[str] = "prices"
    electricity_per_kWh: NonNegative = 0.08
    egress_per_GB: NonNegative = 0.09
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$")] = "USD"
    source: Text = "US EIA 2023: mean industrial price; AWS data transfer out, first 10 TB, 2024"


def store(name: str) -> ObjectStore:
    """An object store of the catalogue: s3, s3_express.

    >>> store("s3").conditional_put
    True
    """
    return build(ObjectStore, lookup("stores", name), f"stores.{name}")
