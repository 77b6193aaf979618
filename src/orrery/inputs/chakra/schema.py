"""The public MLCommons Chakra schema as facts: field numbers, node types, attribute kinds.

Source: `schema/protobuf/et_def.proto` of github.com/mlcommons/chakra, version 1.0 (MIT). A trace is
a file of length-delimited protobuf messages, first one GlobalMetadata, then one Node after the
other. Nothing here needs protoc or a protobuf library.

Three attributes are ours, beside those of the public tools: `start_ns` and `duration_ns` keep times
exactly where microseconds would round, and `comm_root` names the root of a broadcast.
"""

from __future__ import annotations

from typing import Literal

from orrery.base.errors import CodecError

NodeKind = Literal["invalid", "metadata", "mem_load", "mem_store", "comp", "send", "recv", "coll"]
NODE_TYPES: tuple[str, ...] = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE",
    "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, COMM_SEND, COMM_RECV, COMM_COLL = range(8)

# The names that Orrery gives to the collectives, in the order of the schema's numbers.
COLLECTIVES: tuple[str, ...] = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
    "reduce_scatter", "reduce_scatter_block", "barrier",
)  # fmt: skip

# Node: its fields by number.
ID, NAME, TYPE, CTRL_DEPS, DATA_DEPS, START_US, DURATION_US, INPUTS, OUTPUTS, ATTR = range(1, 11)

# AttributeProto: 1 is its name, 2 its doc string; the others are one value of these kinds.
ATTR_NAME, ATTR_DOC = 1, 2
SCALARS: tuple[str, ...] = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
KIND_OF_FIELD: dict[int, str] = {
    number: kind
    for i, scalar in enumerate(SCALARS)
    for number, kind in ((3 + 2 * i, f"{scalar}_val"), (4 + 2 * i, f"{scalar}_list"))
}
FIELD_OF_KIND: dict[str, int] = {kind: number for number, kind in KIND_OF_FIELD.items()}

# The attributes that tools agree on, with the kind in which they are written.
KNOWN_ATTRS: dict[str, str] = {
    "is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val",
    "comm_type": "int64_val", "comm_size": "int64_val", "comm_src": "int32_val",
    "comm_dst": "int32_val", "comm_tag": "int32_val", "pg_name": "string_val",
    "stream": "int64_val", "start_ns": "int64_val", "duration_ns": "int64_val",
    "comm_root": "int32_val",
}  # fmt: skip

# One message larger than this is taken for damage; the largest node of the public samples has 6 kB.
MOST_MESSAGE_B = 1 << 28


class TraceError(CodecError):
    """A trace that cannot be used: damaged, cyclic, or at odds with the other ranks' traces.

    `node` is the id of the node at fault, or None where it is not known.
    """

    def __init__(self, message: str, node: int | None = None) -> None:
        self.node = node
        super().__init__(message)
