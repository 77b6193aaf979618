"""AICB workload text: the reader, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orrery.inputs.aicb import AicbError, read_aicb

HEAD = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8"
ROW = "layer\t-1\t100\tALLREDUCE\t64\t50\tALLTOALL_EP\t32\t70\tALLGATHER_DP_EP\t16\t100"


def write(tmp_path, *lines):
    path = tmp_path / "w.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_row_is_read_with_its_groups(tmp_path):
    found = read_aicb(write(tmp_path, HEAD, "1", ROW))
    assert (found.tp, found.ep, found.dp, found.gpus, len(found)) == (2, 2, 4, 8, 1)
    assert found.compute_ns.tolist() == [[100, 50, 70]]
    assert found.collective == [("all_reduce", "all_to_all", "all_gather")]
    assert found.group == [("tp", "ep", "dp_ep")]


def test_the_9216_gpu_workload_is_read():
    folder = os.environ.get("ORRERY_DATA", "")
    path = Path(folder) / "training" / "simai_9216gpu_workload.txt"
    if not folder or not path.is_file():
        pytest.skip("ORRERY_DATA has no training/simai_9216gpu_workload.txt")
    found = read_aicb(path)
    assert len(found) == 1789 and found.gpus == 9216 and found.dp == 384
    assert (found.tp, found.ep, found.pp, found.vpp, found.micro_batches) == (2, 16, 12, 8, 24)
    assert found.pp_comm_B == 50_331_648
    assert sum(kinds[0] == "all_to_all" for kinds in found.collective) == 768


@pytest.mark.parametrize("lines, names", [
    ((), "has 1 lines"), ((HEAD, "two"), "line 2"), ((HEAD, "2", ROW), "promises 2 rows"),
    ((HEAD, "1", "layer -1 3"), "line 3 has 3 fields"),
    ((HEAD, "1", ROW.replace("ALLREDUCE", "ALLSING")), "unknown collective 'ALLSING'"),
    ((HEAD, "1", ROW.replace("\t100\t", "\t-5\t", 1)), "compute time '-5'"),
    ((HEAD.replace("all_gpus: 8", "all_gpus: 9"), "1", ROW), "no multiple"),
    ((HEAD.replace("all_gpus: 8", "all_gpus: x"), "1", ROW), "no whole number"),
    ((HEAD.replace("ep: 2", "ep: 3"), "1", ROW), "does not divide"),
    ((HEAD.replace("ep: 2", "ep: 0"), "1", ROW), "ep = 0"),
    (("DATA nothing else", "1", ROW), "gives no tp"),
])  # fmt: skip
def test_bad_text_is_refused_with_its_line(tmp_path, lines, names):
    with pytest.raises(AicbError, match=names):
        read_aicb(write(tmp_path, *lines))


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(AicbError, match="cannot be read"):
        read_aicb(tmp_path / "none.txt")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AicbError, match="not text"):
        read_aicb(tmp_path / "b.txt")
