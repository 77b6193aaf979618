"""Quantisation without entropy coding: codes of a fixed width for each chunk."""

from __future__ import annotations

from typing import Literal

from orrery.systems.collectives.ncclz.collective import NCCLZ


class QuantisedRing(NCCLZ):
    """Send codes on a grid, bit-packed: what quantising alone saves.

    The usual way to lighten gradients (Seide et al., "1-bit SGD", 2014; Alistarh et al., "QSGD",
    2017), here with an error bound and without bias: codes of 2 `eb`, as many bits for each as the
    largest of a chunk needs. Codes are added as integers, as `NCCLZ` does; there is no entropy
    coding, so one large value in a chunk costs all others its width.

    >>> QuantisedRing().coder
    'pack'
    """

    coder: Literal["auto", "raw", "pack", "zero", "table"] = "pack"
