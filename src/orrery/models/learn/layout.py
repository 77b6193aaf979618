"""`Layout`: a flat vector of weights, and the named arrays that it is made of.

Collectives, optimisers and averages see one flat vector; a model sees matrices. Both are the same
memory. With several replicas the vector has a row for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from orrery.base.errors import PartError
from orrery.parts.collectives import Array


class Layout:
    """Where each named array lies in the flat vector.

    >>> import numpy as np
    >>> layout = Layout({"hidden": (2, 3), "out": (3,)})
    >>> layout.size, layout.slices["out"]
    (9, slice(6, 9, None))
    >>> layout.views(np.arange(9))["hidden"].tolist()
    [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.slices: dict[str, slice] = {}
        begin = 0
        for name, shape in self.shapes.items():
            self.slices[name] = slice(begin, begin + math.prod(shape))
            begin += math.prod(shape)
        self.size = begin

    def views(self, flat: Array) -> dict[str, Array]:
        """The named arrays of a vector, or of each row of a stack of vectors; no copies."""
        if flat.shape[-1] != self.size:
            raise PartError(f"weights of {flat.shape[-1]} numbers; this model has {self.size}")
        rows = flat.shape[:-1]
        return {
            name: flat[..., self.slices[name]].reshape(*rows, *shape)
            for name, shape in self.shapes.items()
        }

    def groups(self, of: Mapping[str, str]) -> dict[str, slice]:
        """Neighbouring arrays under one name each, such as the layers of a model, as slices."""
        found: dict[str, slice] = {}
        for name, where in self.slices.items():
            group = of[name]
            if group in found:
                if found[group].stop != where.start:
                    raise PartError(f"{name}: the arrays of {group!r} do not lie side by side")
                where = slice(found[group].start, where.stop)
            found[group] = where
        return found
