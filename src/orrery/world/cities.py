"""Cities of the world's cloud regions, and the latencies between them.

Where a measurement is published it is used: the mean round trips of IBM Cloud between its regions,
28 September to 27 October 2024 (IBM Cloud documentation, "Network latency dashboards"; both
directions averaged). Every other pair comes from the great-circle distance at two thirds of the
speed of light, the speed in fibre, times a route factor of 1.5, because cables do not follow great
circles. The measured pairs themselves have a median factor of 1.57, and quartiles of 1.48 and 2.09.
One way is half of a round trip.
"""

from __future__ import annotations

import math

from orrery.base.errors import WorldError, did_you_mean

EARTH_RADIUS_KM = 6371.0
FIBRE_KM_PER_S = 299_792.458 * 2 / 3
ROUTE_FACTOR = 1.5

# Latitude and longitude in degrees, of the city that a cloud region is named after.
PLACES: dict[str, tuple[float, float]] = {
    "washington": (38.91, -77.04), "virginia": (39.04, -77.49), "ohio": (39.96, -83.00),
    "toronto": (43.65, -79.38), "montreal": (45.50, -73.57), "dallas": (32.78, -96.80),
    "oregon": (45.84, -119.70), "california": (37.35, -121.96), "mexico_city": (19.43, -99.13),
    "sao_paulo": (-23.55, -46.63), "santiago": (-33.45, -70.67), "london": (51.51, -0.13),
    "dublin": (53.35, -6.26), "paris": (48.86, 2.35), "madrid": (40.42, -3.70),
    "frankfurt": (50.11, 8.68), "zurich": (47.37, 8.54), "milan": (45.46, 9.19),
    "amsterdam": (52.37, 4.90), "stockholm": (59.33, 18.07), "warsaw": (52.23, 21.01),
    "tel_aviv": (32.09, 34.78), "cape_town": (-33.92, 18.42), "bahrain": (26.07, 50.55),
    "dubai": (25.20, 55.27), "mumbai": (19.08, 72.88), "singapore": (1.35, 103.82),
    "jakarta": (-6.21, 106.85), "hong_kong": (22.32, 114.17), "seoul": (37.57, 126.98),
    "osaka": (34.69, 135.50), "tokyo": (35.68, 139.69), "sydney": (-33.87, 151.21),
}  # fmt: skip

# Mean round trips in milliseconds between IBM Cloud regions, 28 Sep - 27 Oct 2024, both directions.
_MEASURED_IN = (
    "dallas", "toronto", "washington", "frankfurt", "london",
    "madrid", "osaka", "sydney", "tokyo", "sao_paulo",
)  # fmt: skip
_MEASURED_MS = (
    (0, 34, 31, 123, 113, 119, 150, 185, 141, 144),
    (34, 0, 19, 93, 84, 108, 169, 214, 162, 131),
    (31, 19, 0, 90, 76, 89, 175, 213, 169, 119),
    (123, 92, 92, 0, 13, 29, 232, 250, 231, 197),
    (114, 84, 76, 13, 0, 27, 244, 261, 242, 188),
    (119, 107, 90, 29, 27, 0, 259, 275, 255, 207),
    (150, 171, 176, 234, 245, 259, 0, 122, 9, 292),
    (184, 214, 214, 250, 261, 275, 122, 0, 115, 328),
    (143, 164, 167, 231, 243, 257, 9, 115, 0, 283),
    (144, 131, 119, 198, 188, 206, 291, 327, 287, 0),
)
# The cities that `World.wan(n)` takes in turn: far apart, and every pair measured.
USUAL = ("washington", "frankfurt", "tokyo", "sao_paulo", "sydney")


def distance_km(a: str, b: str) -> float:
    """The great-circle distance of two cities (haversine)."""
    (lat_a, lon_a), (lat_b, lon_b) = _place(a), _place(b)
    rise = math.sin(math.radians(lat_b - lat_a) / 2) ** 2
    turn = math.sin(math.radians(lon_b - lon_a) / 2) ** 2
    both = math.cos(math.radians(lat_a)) * math.cos(math.radians(lat_b))
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(rise + both * turn))


def round_trip(a: str, b: str) -> tuple[float, str]:
    """The round trip in seconds, and whether it is "measured" or "modelled".

    >>> round_trip("london", "frankfurt")
    (0.013, 'measured')
    """
    _place(a), _place(b)
    if a in _MEASURED_IN and b in _MEASURED_IN:
        i, j = _MEASURED_IN.index(a), _MEASURED_IN.index(b)
        return (_MEASURED_MS[i][j] + _MEASURED_MS[j][i]) / 2000, "measured"
    rtt_s = 2 * distance_km(a, b) / FIBRE_KM_PER_S * ROUTE_FACTOR
    return round(rtt_s, 6), "modelled"  # to the microsecond, so that no libm changes a world's hash


def matrix(sites: tuple[str, ...], inside_s: float) -> tuple[tuple[float, ...], ...]:
    """One-way latencies by pair of sites; two machines of one site are `inside_s` apart."""
    for site in sites:
        _place(site)
    return tuple(
        tuple(inside_s if a == b else max(round_trip(a, b)[0] / 2, inside_s) for b in sites)
        for a in sites
    )


def spread(n: int | None) -> dict[str, int]:
    """n machines over the usual cities, as evenly as can be."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise WorldError("groups.count", f"{n!r} is refused", "give a whole number >= 1")
    cities = USUAL[: min(n, len(USUAL))]
    each, rest = divmod(n, len(cities))
    return {city: each + (i < rest) for i, city in enumerate(cities)}


def _place(city: str) -> tuple[float, float]:
    if city not in PLACES:
        problem = "there is no such city in the table"
        raise WorldError(f"sites.{city}", problem, did_you_mean(str(city), PLACES))
    return PLACES[city]
