"""The Chakra codec: held against protobuf itself, the public samples, and damaged files."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.inputs import chakra
from orrery.inputs.chakra import Attr, EtNode, Metadata, TraceError, known
from orrery.inputs.chakra.nodes import IO, decode_node, encode_metadata, encode_node
from orrery.inputs.chakra.schema import FIELD_OF_KIND, SCALARS
from orrery.inputs.chakra.stream import read_messages
from orrery.inputs.chakra.wire import delimited, field, varint

DATA = os.environ.get("ORRERY_DATA", "")


@pytest.fixture
def sample(tmp_path):
    """The public samples, unpacked; skipped by name where they are not on this machine."""
    folder = Path(DATA) / "chakra"
    if not DATA or not folder.is_dir():
        pytest.skip("ORRERY_DATA has no folder chakra with the public samples")
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path, filter="data")
    return tmp_path


def protobuf_node_class():
    """The Node of the published schema, built by protobuf from its field numbers."""
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="E", syntax="proto3")

    def add(message, name, number, kind, repeated=False, of="", oneof=None):
        one = message.field.add(name=name, number=number, type=getattr(kinds, f"TYPE_{kind}"))
        one.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        if of:
            one.type_name = f".E.{of}"
        if oneof is not None:
            one.oneof_index = oneof

    attr = file.message_type.add(name="Attr")
    add(attr, "name", 1, "STRING")
    add(attr, "doc_string", 2, "STRING")
    attr.oneof_decl.add(name="value")
    for i, scalar in enumerate(SCALARS):
        many = file.message_type.add(name=f"{scalar.title()}List")
        add(many, "values", 1, scalar.upper(), repeated=True)
        add(attr, f"{scalar}_val", 3 + 2 * i, scalar.upper(), oneof=0)
        add(attr, f"{scalar}_list", 4 + 2 * i, "MESSAGE", of=f"{scalar.title()}List", oneof=0)
    io = file.message_type.add(name="IO")
    for i, name in enumerate(("values", "shapes", "types"), 1):
        add(io, name, i, "STRING")
    node = file.message_type.add(name="Node")
    add(node, "id", 1, "UINT64")
    add(node, "name", 2, "STRING")
    add(node, "type", 3, "INT32")
    add(node, "ctrl_deps", 4, "UINT64", repeated=True)
    add(node, "data_deps", 5, "UINT64", repeated=True)
    add(node, "start_time_micros", 6, "UINT64")
    add(node, "duration_micros", 7, "UINT64")
    add(node, "inputs", 8, "MESSAGE", of="IO")
    add(node, "outputs", 9, "MESSAGE", of="IO")
    add(node, "attr", 10, "MESSAGE", repeated=True, of="Attr")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("E.Node"))


VALUES = {
    "double": st.floats(allow_nan=False), "float": st.floats(width=32, allow_nan=False),
    "bool": st.booleans(), "string": st.text(max_size=8), "bytes": st.binary(max_size=8),
    **{k: st.integers(-(2**31), 2**31 - 1) for k in ("int32", "sint32", "sfixed32")},
    **{k: st.integers(-(2**63), 2**63 - 1) for k in ("int64", "sint64", "sfixed64")},
    **{k: st.integers(0, 2**32 - 1) for k in ("uint32", "fixed32")},
    **{k: st.integers(0, 2**64 - 1) for k in ("uint64", "fixed64")},
}  # fmt: skip


@st.composite
def attrs(draw):
    scalar = draw(st.sampled_from(SCALARS))
    if draw(st.booleans()):
        value, kind = draw(VALUES[scalar]), f"{scalar}_val"
    else:
        value, kind = draw(st.lists(VALUES[scalar], max_size=4)), f"{scalar}_list"
    return Attr(
        name=draw(st.text(max_size=6)), kind=kind, value=value, doc=draw(st.text(max_size=3))
    )


ids = st.integers(0, 2**64 - 1)
nodes = st.builds(
    EtNode, id=ids, name=st.text(max_size=12), type=st.integers(0, 7),
    ctrl_deps=st.lists(ids, max_size=3), data_deps=st.lists(ids, max_size=3), start_us=ids,
    duration_us=ids, inputs=st.none() | st.builds(IO, values=st.text(max_size=4)),
    outputs=st.none() | st.builds(IO, types=st.text(max_size=4)),
    attrs=st.lists(attrs(), max_size=3),
)  # fmt: skip


@pytest.mark.works_when("chakra", 1)
@settings(max_examples=60, deadline=None)
@given(nodes)
def test_any_node_survives_a_round_trip(node):
    assert decode_node(encode_node(node)) == node


@pytest.mark.works_when("chakra", 1)
@settings(max_examples=60, deadline=None)
@given(nodes)
def test_protobuf_reads_and_writes_the_same_bytes(node):
    cls = protobuf_node_class()
    theirs = cls.FromString(encode_node(node))
    assert (theirs.id, theirs.name, list(theirs.data_deps)) == (node.id, node.name, node.data_deps)
    for mine, other in zip(node.attrs, theirs.attr, strict=True):
        assert other.WhichOneof("value") == mine.kind
        value = getattr(other, mine.kind)
        value = list(value.values) if mine.kind.endswith("_list") else value
        assert value == mine.value
    assert theirs.SerializeToString(deterministic=True) == encode_node(node)


@pytest.mark.works_when("chakra", 1)
def test_unknown_fields_and_attributes_survive():
    later = delimited(77, b"from a later version") + field(78, 0) + varint(5)
    odd = Attr(name="new", unknown=delimited(99, b"?"))
    node = EtNode(id=3, attrs=[odd, Attr(name="mine", kind="int64_list", value=[1, -2])])
    data = encode_node(node) + later
    again = decode_node(data)
    assert again.unknown == later
    assert again.attrs[0].unknown == odd.unknown
    assert encode_node(again) == data


@pytest.mark.works_when("chakra", 1)
def test_the_public_protobuf_sample_is_read_byte_for_byte(sample):
    path = sample / "tests" / "data" / "chakra.0.et"
    metadata, found = chakra.open_trace(path)
    found = list(found)
    raw = list(read_messages(path))
    assert len(found) == 3664
    assert encode_metadata(metadata) == raw[0]
    assert [encode_node(node) for node in found] == raw[1:]
    columns = chakra.load(path)
    same = chakra.columns_of(metadata, found)
    for name in ("id", "type", "start_us", "duration_us", "ctrl", "data", "data_starts", "name"):
        assert (getattr(columns, name) == getattr(same, name)).all(), name
    assert columns.attrs.keys() == same.attrs.keys()
    assert all((columns.attrs[k] == same.attrs[k]).all() for k in same.attrs)
    assert (columns.type == 7).sum() == 21
    owner, _, missing = chakra.check_order(columns)
    assert len(owner) == 181_878 and not len(missing)


@pytest.mark.works_when("chakra", 1)
def test_the_public_json_sample_is_the_same_trace(sample):
    columns = chakra.load(sample / "tests" / "data" / "chakra.0.et")
    other = chakra.columns_of(*chakra.read_json(sample / "jsonData" / "chakra.0.json"))
    for name in ("id", "type", "duration_us", "data", "data_starts"):
        assert (getattr(columns, name) == getattr(other, name)).all(), name
    _, small = chakra.read_json(sample / "jsonData" / "small_chakra.0.json")
    assert [node.id for node in small][:2] == [216, 217] and small[0].ctrl_deps == [3]


def chain(count, start=0):
    rng = np.random.default_rng(1)
    kind = rng.choice([4, 4, 7], count).astype(np.int8)
    deps = np.maximum(np.arange(count) - 1, 0)
    starts = np.concatenate(([0], np.cumsum(np.minimum(np.arange(count), 1))))
    return chakra.EtColumns(
        metadata=Metadata(), id=np.arange(start, start + count), type=kind,
        name=rng.integers(0, 50, count).astype(np.int32), names=[f"op {i}" for i in range(50)],
        start_us=np.arange(count) * 3, duration_us=rng.integers(0, 900, count),
        ctrl_starts=np.zeros(count + 1, np.int64), ctrl=np.empty(0, np.int64), data_starts=starts,
        data=deps[1:] + start, group=np.where(kind == 7, 0, -1).astype(np.int32), groups=["dp"],
        attrs={"comm_size": np.where(kind == 7, 1 << 20, -1)},
    )  # fmt: skip


def same(one, other):
    texts = [np.array(c.names)[c.name] for c in (one, other)]
    assert (texts[0] == texts[1]).all()
    for name in ("id", "type", "start_us", "duration_us", "data", "data_starts", "group"):
        assert (getattr(one, name) == getattr(other, name)).all(), name
    assert all((one.attrs[k] == other.attrs[k]).all() for k in one.attrs)


@pytest.mark.works_when("chakra", 1)
def test_twenty_thousand_nodes_make_a_lossless_round_trip_and_stream(tmp_path):
    made = chain(20_000)
    path = tmp_path / "big.et"
    assert chakra.save(path, made) == 20_000
    same(made, chakra.load(path))
    _, found = chakra.open_trace(path)
    first = next(found)  # the rest has not been read yet
    assert first.id == 0
    again = tmp_path / "again.et"
    assert chakra.write_trace(again, *chakra.open_trace(path)) == 20_000
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.slow
@pytest.mark.works_when("chakra", 1)
def test_a_million_nodes_need_less_than_two_gigabytes(tmp_path):
    import subprocess
    import sys

    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of a process's memory is read from /proc, which is not here")
    path = tmp_path / "big.et"
    made = chain(1_000_000)
    assert chakra.save(path, made) == 1_000_000
    code = (
        "import sys; from orrery.inputs import chakra\n"
        "columns = chakra.load(sys.argv[1]); chakra.check_order(columns)\n"
        "count = sum(1 for _ in chakra.open_trace(sys.argv[1])[1])\n"
        # getrusage would count the memory of the process that started this one, too.
        "peak = open('/proc/self/status').read().split('VmHWM:')[1].split()[0]\n"
        "print(len(columns), count, peak)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True,
                         check=True, env={**os.environ, "PYTHONPATH": "src"})  # fmt: skip
    columns, streamed, peak_kB = map(int, out.stdout.split())
    assert columns == streamed == 1_000_000
    print(f"peak {peak_kB} kB")
    assert peak_kB < 2_000_000
    same(made, chakra.load(path))


# -- damage


@pytest.fixture
def short(tmp_path):
    path = tmp_path / "short.et"
    chakra.save(path, chain(50, start=1000))
    return path


@pytest.mark.works_when("chakra", 1)
def test_a_truncated_file_is_refused_naming_the_node(short):
    data = short.read_bytes()
    short.write_bytes(data[:-2])
    with pytest.raises(TraceError, match=r"truncated in node 1049 \(after node 1048\)") as failure:
        list(chakra.open_trace(short)[1])
    assert failure.value.node == 1049
    with pytest.raises(TraceError, match="node 1049"):
        chakra.load(short)


@pytest.mark.works_when("chakra", 1)
def test_a_cycle_is_refused_naming_a_node_of_it(tmp_path):
    path = tmp_path / "ring.et"
    ring = [EtNode(id=5), EtNode(id=6, data_deps=[8]), EtNode(id=7, data_deps=[6]),
            EtNode(id=8, ctrl_deps=[7])]  # fmt: skip
    chakra.write_trace(path, Metadata(), ring)
    with pytest.raises(TraceError, match=r"node [678] waits for itself") as failure:
        chakra.check_order(chakra.load(path))
    assert failure.value.node in (6, 7, 8)
    with pytest.raises(TraceError, match="node 5 waits for itself"):
        chakra.check_order(chakra.columns_of(Metadata(), [EtNode(id=5, data_deps=[5])]))


def test_repeated_ids_are_refused_and_missing_ones_told():
    twice = [EtNode(id=5), EtNode(id=5)]
    with pytest.raises(TraceError, match="node 5 comes twice"):
        chakra.check_order(chakra.columns_of(Metadata(), twice))
    dangling = chakra.columns_of(Metadata(), [EtNode(id=5, data_deps=[3])])
    assert chakra.check_order(dangling)[2].tolist() == [3]
    with pytest.raises(TraceError, match="deps="):
        chakra.check_order(dangling, "some")


@pytest.mark.parametrize("damage", [b"", b"\x05", b"\xff" * 12, b"\x04\x0a\x80\x80\x01"])
def test_what_is_no_trace_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "bad.et"
    path.write_bytes(damage)
    for read in (chakra.load, lambda p: list(chakra.open_trace(p)[1])):
        with pytest.raises(TraceError):
            read(path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_shows_anything_but_a_named_error(data):
    import tempfile

    good = b"".join(varint(len(m)) + m for m in
                    [encode_metadata(Metadata()), *(encode_node(EtNode(
                        id=i, name="x" * i, data_deps=[i - 1] if i else [],
                        attrs=[known("comm_size", 300), Attr("s", "string_val", "é")]))
                        for i in range(5))])  # fmt: skip
    place = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[place] = data.draw(st.integers(0, 255))
    with tempfile.NamedTemporaryFile(suffix=".et") as file:
        file.write(bad)
        file.flush()
        for read in (chakra.load, lambda p: list(chakra.open_trace(p)[1])):
            try:
                read(file.name)
            except TraceError as failure:
                assert str(failure)


def test_missing_files_and_bad_values_are_named(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        chakra.load(tmp_path / "none.et")
    with pytest.raises(TraceError, match="no folder"):
        chakra.write_trace(tmp_path / "no" / "x.et", Metadata(), [])
    with pytest.raises(TraceError, match="-1"):
        encode_node(EtNode(id=-1))
    with pytest.raises(TraceError, match="no kind"):
        encode_node(EtNode(id=1, attrs=[Attr("x", "int65_val", 1)]))
    with pytest.raises(TraceError, match="does not fit int32"):
        encode_node(EtNode(id=1, attrs=[Attr("x", "int32_val", 1 << 40)]))


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    path = tmp_path / "half.et"

    def broken():
        yield EtNode(id=1)
        yield EtNode(id=-1)

    with pytest.raises(TraceError):
        chakra.write_trace(path, Metadata(), broken())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text, names", [
    ("{", "not JSON"), ("[]", "workload_graph"), ('{"workload_graph": [3]}', "number 0"),
    ('{"workload_graph": [{"Id": "x"}]}', "id 'x'"),
    ('{"workload_graph": [{"Id": 4, "runtime": -2}]}', "node 4: runtime"),
    ('{"workload_graph": [{"Id": 4, "data_deps": 2}]}', "node 4: data_deps"),
])  # fmt: skip
def test_bad_json_is_refused_with_its_node(tmp_path, text, names):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=names):
        chakra.read_json(path)


def test_the_json_form_comes_back(tmp_path):
    import json

    nodes = [EtNode(id=1, name="a", attrs=[known("is_cpu_op", True)]),
             EtNode(id=2, data_deps=[1], duration_us=7)]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps(chakra.json_document(Metadata(), nodes)))
    assert chakra.read_json(path)[1] == nodes


def test_the_numbers_of_attribute_kinds_are_those_of_the_schema():
    assert FIELD_OF_KIND["double_val"] == 3 and FIELD_OF_KIND["bytes_list"] == 32
    assert FIELD_OF_KIND["string_val"] == 29 and FIELD_OF_KIND["bool_val"] == 27
