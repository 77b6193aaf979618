"""Gradient coding: redundancy that lets the slowest workers of each round be missed."""

from __future__ import annotations

from orrery.parts import Whole
from orrery.systems.resilience.problems.coding import CodeCourse, Course, GradientScheme


class GradientCoding(GradientScheme):
    """Every worker computes `missing` + 1 parts; any n - `missing` answers give the gradient.

    Tandon, Lei, Dimakis and Karampatziakis, "Gradient coding: avoiding stragglers in distributed
    learning", ICML 2017. The load of a worker is (missing + 1)/n, the least that forgives any
    `missing` stragglers in the round itself.

    Knobs: `missing`, how many workers a round may do without.
    Differs from the paper: nothing of substance; the cyclic code's factors are drawn once for each
    size.

    >>> GradientCoding(missing=1).course(4).load
    0.5
    """

    missing: Whole = 1

    def course(self, workers: int) -> Course:
        return CodeCourse(workers, self.missing)
