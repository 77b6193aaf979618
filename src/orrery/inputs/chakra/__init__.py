"""Chakra execution traces in and out: the public MLCommons schema, with a codec of our own.

`open_trace` and `write_trace` stream nodes as objects and lose nothing; `load` and `save` hold a
whole trace as NumPy columns; `read_json` reads the public JSON form.
"""

from __future__ import annotations

from orrery.inputs.chakra.columns import EtColumns, load, save
from orrery.inputs.chakra.jsons import json_document, read_json
from orrery.inputs.chakra.nodes import IO, Attr, EtNode, Metadata, known
from orrery.inputs.chakra.order import check_order, columns_of
from orrery.inputs.chakra.schema import COLLECTIVES, NODE_TYPES, TraceError
from orrery.inputs.chakra.stream import open_trace, write_trace

__all__ = [
    "COLLECTIVES", "IO", "NODE_TYPES", "Attr", "EtColumns", "EtNode", "Metadata", "TraceError",
    "check_order", "columns_of", "json_document", "known", "load", "open_trace", "read_json",
    "save", "write_trace",
]  # fmt: skip
