"""Readers of traces: what they read, what they refuse, by line; on made-up files."""

from __future__ import annotations

import gzip
import json
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import OrreryError
from orrery.inputs import (
    FORMATS,
    Workload,
    WorkloadError,
    load_servegen,
    open_workload,
    read_mooncake,
    read_otel,
    sniff,
)

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:51.2224670,879,55\n"
)
MOONCAKE = "".join(
    json.dumps({"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": ids}) + "\n"
    for t, n, ids in [
        (0, 1500, [0, 1, 2]),
        (0, 1400, [0, 3, 4]),
        (3000, 2000, [0, 1, 5, 6]),
        (6000, 2500, [0, 1, 5, 7, 8]),
    ]
)
SHAREGPT = "".join(
    json.dumps({"arrival_ns": t, "input_length": n, "output_length": o, "hash_ids": ids}) + "\n"
    for t, n, o, ids in [(5, 35, 20, [0, 1, 2]), (1_000_000_005, 32, 33, [0, 1, 3, 4])]
)
OPENAI = (
    '{"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 9, '
    '"timestamp": 1.5}\n'
    '{"model": "k", "prompt": "again", "usage": {"prompt_tokens": 70, "completion_tokens": 3}, '
    '"timestamp": 1.0}\n'
)


def span(name, begin, end, said, answer, above=None):
    return {
        "trace_id": "t",
        "span_id": name,
        "parent_span_id": above,
        "start_time": f"2026-02-25T10:00:{begin:09.6f}",
        "end_time": f"2026-02-25T10:00:{end:09.6f}",
        "attributes": {
            "gen_ai.request.model": "gpt-4",
            "gen_ai.input.messages": json.dumps(said),
            "gen_ai.output.text": answer,
        },
    }


def user(text):
    return {"role": "user", "content": text}


def bot(text):
    return {"role": "assistant", "content": text}


LONG = "a long beginning that several calls of this session have in common, word for word. " * 3
OTEL = {
    "trace_id": "t",
    "spans": [
        span("a", 0, 2, [user(LONG)], "answer of a, which is a text of some length"),
        span("b", 0.5, 3, [user("another")], "answer of b"),
        span(
            "c",
            4,
            5,
            [user(LONG), bot("answer of a, which is a text of some length"), bot("answer of b")],
            "answer of c",
        ),
        span("d", 6, 7, [user(LONG), bot("answer of c"), bot("answer of b")], "end"),
    ],
}


def put(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# -- Azure


def test_azure_times_count_from_the_first_and_lose_nothing(tmp_path):
    work = open_workload(put(tmp_path, "a.csv", AZURE))
    assert work.arrival_s.tolist() == [0.0, 4.314579, 4.541877]
    assert work.input_tokens.tolist() == [374, 396, 879]
    assert work.source == "a.csv"


def test_the_columns_of_2024_and_of_others_are_known(tmp_path):
    text = AZURE.replace("00,", "00+00:00,").replace("90,", "90+00:00,").replace("70,", "70+00:00,")
    newer = open_workload(put(tmp_path, "b.csv", "\ufeff" + text.replace("\n", "\r\n")))
    assert newer == open_workload(put(tmp_path, "a.csv", AZURE))
    burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    burst += '5,ChatGPT,472,18,490,"Conversation, log"\n4.5,GPT-4,1087,230,1317,API log\n'
    work = open_workload(put(tmp_path, "burst.csv", burst))
    assert work.arrival_s.tolist() == [0.0, 0.5]  # put in order
    assert [work.kind_of(i) for i in (0, 1)] == ["GPT-4", "ChatGPT"]
    vidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,5,6\n"
    assert open_workload(put(tmp_path, "v.csv", vidur)).output_tokens.tolist() == [6]


CSV_WRONG = [
    (AZURE.replace("396", "x"), ":3", "'x'"),
    (AZURE.replace("396", "-4"), ":3", "at least 1"),
    (AZURE.replace("396", "0"), ":3", "skip_empty"),
    (AZURE.replace("396", "4.5"), ":3", "whole"),
    (AZURE.replace("396", "99999999999"), ":3", "input tokens"),
    (AZURE.replace(",396", ""), ":3", "2 fields where the head has 3"),
    (AZURE.replace(",396", ",,396").replace(",879", ""), ":3", "fields"),
    (AZURE.replace("2023-11-16 18:15:50.9951690", "now"), ":3", "time"),
    (AZURE.replace("2023-11-16 18:15:50.9951690", ""), ":3", "time"),
    (AZURE.replace("2023-11-16 18:15:50.9951690", "2023-13-16"), ":3", "time"),
    (AZURE.replace("50.9951690", "50.9951690+02:00"), ":3", "time"),
    (AZURE.replace("2023-11-16 18:15:46.6805900", "nan"), ":2", "time"),
    ("a,b\n1,2\n", ":1", "no column for the time"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "", "no request"),
    ("", "", "empty"),
    ("\n \n", "", "empty"),
    (b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff\xfe,1,2\n", ":2", "UTF-8"),
]


@pytest.mark.parametrize(("text", "where", "says"), CSV_WRONG, ids=range(len(CSV_WRONG)))
def test_a_wrong_line_of_a_csv_is_named(tmp_path, text, where, says):
    path = put(tmp_path, "a.csv", text)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path, "azure")
    assert caught.value.path == f"{path}{where}" and says in str(caught.value)


def test_empty_requests_can_be_left_out(tmp_path):
    path = put(tmp_path, "a.csv", AZURE.replace("396,109", "396,0"))
    assert open_workload(path, skip_empty=True).input_tokens.tolist() == [374, 879]


# -- Mooncake


def test_mooncake_sessions_come_from_shared_prefixes(tmp_path):
    work = open_workload(put(tmp_path, "m.jsonl", MOONCAKE))
    assert work.block_tokens == 512 and work.arrival_s.tolist() == [0, 0, 3, 6]
    # Block 0 is everyone's here too, but four requests are too few to call it common ground.
    assert work.session.tolist() == [0, 0, 0, 0]
    others = "".join(
        json.dumps(
            {"timestamp": 9000, "input_length": 900, "output_length": 1, "hash_ids": [0, 100 + i]}
        )
        + "\n"
        for i in range(40)
    )
    work = open_workload(put(tmp_path, "n.jsonl", MOONCAKE + others))
    assert work.session[:4].tolist() == [0, 1, 0, 0]
    assert len(np.unique(work.session)) == 42


def test_mooncake_ticks_can_be_spread(tmp_path):
    work = read_mooncake(put(tmp_path, "m.jsonl", MOONCAKE), spread=True)
    assert work.arrival_s.tolist() == [0, 1.5, 3, 6]


def test_named_sessions_and_qwen_chats_are_taken_as_they_are(tmp_path):
    lines = [
        {"timestamp": 0, "input_length": 9, "output_length": 1, "session_id": "x"},
        {"timestamp": 1, "input_length": 9, "output_length": 1, "session_id": "y"},
        {"timestamp": 2, "input_length": 9, "output_length": 1, "session_id": "x"},
    ]
    text = "\n".join(map(json.dumps, lines))
    assert open_workload(put(tmp_path, "s.jsonl", text)).session.tolist() == [0, 1, 0]
    chats = [(1, -1, "text"), (2, 1, "text"), (3, -1, "image")]
    text = "\n".join(
        json.dumps(
            {
                "chat_id": chat, "parent_chat_id": before, "timestamp": chat / 2, "turn": 1,
                "type": kind, "input_length": 20, "output_length": 1, "hash_ids": [7, chat],
            }
        )
        for chat, before, kind in chats
    )  # fmt: skip
    work = open_workload(put(tmp_path, "q.jsonl", text))
    assert work.session.tolist() == [0, 0, 1] and work.block_tokens == 16
    assert work.arrival_s.tolist() == [0.5, 1.0, 1.5] and work.kinds == ("text", "image")


def test_ids_that_are_not_chained_are_chained(tmp_path):
    text = "".join(
        json.dumps({"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": ids})
        + "\n"
        for ids in ([5, 6], [6, 5], [5, 6])
    )
    work = open_workload(put(tmp_path, "m.jsonl", text))
    assert work.blocks(0).tolist() == work.blocks(2).tolist()
    assert not set(work.blocks(0).tolist()) & set(work.blocks(1).tolist())


LINES_WRONG = [
    ("{", ":2", "refused"),
    ('{"timestamp": "soon", "input_length": 1, "output_length": 1}', ":2", "float"),
    ('{"input_length": 1}', ":2", "output_length"),
    ('{"timestamp": -5, "input_length": 1, "output_length": 1}', ":2", "time"),
    ('{"timestamp": 1, "input_length": 0, "output_length": 1}', ":2", "at least 1"),
    ('{"timestamp": 1, "input_length": 1e30, "output_length": 1}', ":2", "refused"),
    ('{"timestamp": 1, "input_length": 99999999999999999999, "output_length": 1}', ":2", "tokens"),
    ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1e99]}', ":2", ""),
    ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [' + "9" * 30 + "]}",
     ":2", "hash id"),
    ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1, 2]}', "", "blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "where", "says"), LINES_WRONG, ids=range(len(LINES_WRONG)))
def test_a_wrong_line_of_a_jsonl_is_named(tmp_path, line, where, says):
    first = MOONCAKE.partition("\n")[0]
    path = put(tmp_path, "m.jsonl", f"{first}\n{line}\n")
    with pytest.raises(WorkloadError) as caught:
        open_workload(path, "mooncake")
    assert caught.value.path == f"{path}{where}" and says in str(caught.value)


def test_blank_lines_do_not_shift_the_count(tmp_path):
    first = MOONCAKE.partition("\n")[0]
    path = put(tmp_path, "m.jsonl", f"{first}\n\n{first}\nbroken\n")
    with pytest.raises(WorkloadError, match=r"m\.jsonl:4"):
        open_workload(path)
    assert len(open_workload(put(tmp_path, "k.jsonl", f"{first}\n\n{first}\n"))) == 2


# -- ShareGPT, OpenAI


def test_sharegpt_blocks_are_cut_where_the_prompt_ends(tmp_path):
    path = put(tmp_path, "x.blocks16.jsonl.gz", gzip.compress(SHAREGPT.encode()))
    work = open_workload(path)
    assert work.arrival_s.tolist() == [5e-9, 1.000000005]
    assert work.blocks(0).tolist() == [0, 1] and work.answer_blocks(0).tolist() == [2]
    assert work.blocks(1).tolist() == [0, 1] and work.answer_blocks(1).tolist() == [3, 4]


def test_token_ids_become_chained_blocks(tmp_path):
    lines = [
        {"arrival_time_ns": 0, "input_toks": 4, "output_toks": 2, "input_tok_ids": [1, 2, 3, 4]},
        {"arrival_time_ns": 9, "input_toks": 4, "output_toks": 1, "input_tok_ids": [1, 2, 9, 9]},
    ]
    path = put(tmp_path, "t.jsonl", "\n".join(map(json.dumps, lines)))
    work = open_workload(path, block_tokens=2)
    assert work.blocks(0).tolist() == [0, 1] and work.blocks(1).tolist() == [0, 2]


def test_conversations_become_turns_that_wait(tmp_path):
    chat = [("human", LONG), ("gpt", LONG * 2), ("human", "more"), ("gpt", "done")]
    data = [{"id": "c", "conversations": [{"from": f, "value": v} for f, v in chat]}]
    work = open_workload(put(tmp_path, "chats.json", json.dumps(data)))
    assert len(work) == 2 and work.parents(1) == (0,) and work.session.tolist() == [0, 0]
    known = [*work.blocks(0).tolist(), *work.answer_blocks(0).tolist()]
    assert work.blocks(1).tolist()[: len(known)] == known  # the next prompt begins with all of it
    for wrong in ('[{"conversations": 3}]', '[{"conversations": [{"from": "gpt"}]}]', "[]", "[1]"):
        with pytest.raises(WorkloadError):
            open_workload(put(tmp_path, "wrong.json", wrong), "sharegpt")


def test_openai_lines_and_batches(tmp_path):
    work = open_workload(put(tmp_path, "o.jsonl", OPENAI))
    assert work.arrival_s.tolist() == [1.0, 1.5] and work.kinds == ("m", "k")
    assert work.input_tokens.tolist() == [70, 5] and work.output_tokens.tolist() == [3, 9]
    batch = {"custom_id": "1", "body": {"model": "m", "messages": [user("hi")], "max_tokens": 7}}
    work = open_workload(put(tmp_path, "b.jsonl", json.dumps(batch)))
    assert work.arrival_s.tolist() == [0] and work.output_tokens.tolist() == [7]
    bare = '{"arrival_s": 2, "input_tokens": 5, "output_tokens": 6}'
    assert open_workload(put(tmp_path, "c.jsonl", bare)).seconds == 2
    unsaid = put(tmp_path, "u.jsonl", '{"prompt": "hi"}')
    with pytest.raises(WorkloadError, match="output_tokens="):
        open_workload(unsaid)
    assert open_workload(unsaid, output_tokens=11).output_tokens.tolist() == [11]
    with pytest.raises(WorkloadError, match=":2.*no time"):
        open_workload(put(tmp_path, "h.jsonl", f'{bare}\n{{"prompt": "x", "max_tokens": 1}}'))


# -- OpenTelemetry


def test_agent_calls_wait_for_whose_answers_they_hold(tmp_path):
    work = open_workload(put(tmp_path, "t.json", json.dumps(OTEL)))
    assert work.arrival_s.tolist() == [0, 0.5, 4, 6]
    assert [work.parents(i) for i in range(4)] == [(), (), (0, 1), (2,)]
    assert work.parent.tolist() == [-1, -1, 1, 2]  # b ended after a
    assert work.delay_s.tolist() == [0, 0, 1, 1]
    shared = work.blocks(2)[: len(work.blocks(0))]
    assert shared.tolist() == work.blocks(0).tolist() and len(shared) >= 3
    assert set(np.unique(work.session)) == {0}


def test_time_alone_makes_a_call_wait_only_if_asked(tmp_path):
    spans = [span("a", 0, 1, [user("x")], "one"), span("b", 2, 3, [user("y")], "two")]
    path = put(tmp_path, "t.json", json.dumps({"spans": spans}))
    assert read_otel(path).parents(1) == (0,)
    assert read_otel(path, by_time=False).parents(1) == ()
    spans[1]["parent_span_id"] = "a"
    path = put(tmp_path, "t.json", json.dumps({"spans": spans}))
    assert read_otel(path, by_time=False).parents(1) == (0,)


def test_otlp_and_folders_are_read(tmp_path):
    attributes = [
        {"key": "gen_ai.prompt", "value": {"stringValue": "hello"}},
        {"key": "gen_ai.completion", "value": {"stringValue": "yes"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "120"}},
    ]
    spans = [
        {"spanId": "1", "startTimeUnixNano": "1000000000", "endTimeUnixNano": "2000000000",
         "attributes": attributes},
        {"spanId": "2", "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": []},
    ]  # fmt: skip
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    put(tmp_path, "a.json", json.dumps(document))
    put(tmp_path, "b.json", json.dumps(OTEL))
    work = open_workload(tmp_path)
    assert len(work) == 5 and 120 in work.input_tokens.tolist()
    assert len(np.unique(work.session)) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"start_time": "yesterday"},
        {"start_time": None},
        {"end_time": "2026-02-25T09:00:00"},
        {"attributes": {"gen_ai.input.messages": "[1"}},
        {"attributes": {"gen_ai.input.messages": "[1]"}},
        {"attributes": {"gen_ai.prompt": "x", "gen_ai.usage.input_tokens": -1}},
        {"attributes": {}},
    ],
)
def test_a_span_that_is_off_is_refused(tmp_path, change):
    one = {**span("a", 0, 1, [user("x")], "y"), **change}
    with pytest.raises(WorkloadError):
        open_workload(put(tmp_path, "t.json", json.dumps({"spans": [one]})), "otel")


# -- ServeGen


def servegen(folder, rate="2.0", pattern="Gamma", histogram="{10: 0.5, 20: 0.5}", output="{7: 1}"):
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{600 * i},{rate},1.5,{pattern},0.4,1\n" for i in range(144))
    (folder / "chunk-3-trace.csv").write_text(rows)
    fields = {"input_tokens": histogram, "output_tokens": output}
    (folder / "chunk-3-dataset.json").write_text(json.dumps({"0": fields, "43200": fields}))
    return folder


def test_servegen_clients_become_requests(tmp_path):
    folder = servegen(tmp_path / "data" / "m")
    mix = load_servegen(folder)
    assert mix.rate_per_s == 2 and mix.clients[0].cv_between(0, 600) == 1.5
    work = mix.generate(seconds=3600, seed=4)
    assert work == mix.generate(seconds=3600, seed=4) != mix.generate(seconds=3600, seed=5)
    assert len(work) == pytest.approx(7200, rel=0.06)
    assert set(np.unique(work.input_tokens)) == {10, 20} and set(work.output_tokens) == {7}
    assert len(mix.generate(seconds=3600, rate_factor=3)) == pytest.approx(21600, rel=0.06)
    archive = tmp_path / "s.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "data", "data")
    assert sniff(archive) == "servegen" == sniff(tmp_path / "data")
    assert open_workload(archive) == open_workload(tmp_path / "data")


def test_servegen_counts_images_as_input(tmp_path):
    folder = servegen(tmp_path / "m")
    fields = {
        "text_tokens": "{5: 1.0}", "image_tokens": "{100: 1.0}", "image_count": "{2: 1.0}",
        "audio_tokens": "{0: 1.0}", "audio_count": "{0: 1.0}", "output_tokens": "{3: 1.0}",
    }  # fmt: skip
    (folder / "chunk-3-dataset.json").write_text(json.dumps({"0": fields}))
    assert set(open_workload(folder, seconds=60.0).input_tokens) == {205}


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": "x"},
        {"rate": "-1"},
        {"rate": "nan"},
        {"rate": "0"},
        {"pattern": "Pareto"},
        {"histogram": "{10: 0.5"},
        {"histogram": "{10: -0.5}"},
        {"histogram": "{10}"},
        {"histogram": "{}"},
        {"histogram": "__import__('os')"},
    ],
)
def test_servegen_data_that_are_off_are_refused(tmp_path, changes):
    with pytest.raises(WorkloadError):
        open_workload(servegen(tmp_path / "m", **changes))


def test_servegen_asks_which_model(tmp_path):
    servegen(tmp_path / "data" / "m")
    servegen(tmp_path / "data" / "k")
    with pytest.raises(WorkloadError, match=r"several models: k, m"):
        open_workload(tmp_path / "data")
    assert len(open_workload(tmp_path / "data", model="k"))
    with pytest.raises(WorkloadError, match="no model"):
        open_workload(tmp_path / "data", model="z")
    (tmp_path / "data" / "k" / "chunk-3-trace.csv").unlink()
    with pytest.raises(WorkloadError, match="no trace file"):
        open_workload(tmp_path / "data", model="k")


# -- telling formats apart


def test_formats_are_told_from_the_content(tmp_path):
    files = {
        "azure": AZURE,
        "mooncake": MOONCAKE,
        "sharegpt": SHAREGPT,
        "openai": OPENAI,
        "otel": json.dumps(OTEL),
    }
    for name, text in files.items():
        path = put(tmp_path, f"{name}.dat", text)
        assert sniff(path) == name
        work = open_workload(path)
        saved = work.save(tmp_path / f"{name}.npz")
        assert sniff(saved) == "orrery" and open_workload(saved) == work
    assert set(FORMATS) == {*files, "servegen", "orrery"}


def test_what_is_no_trace_is_refused(tmp_path):
    for text in ("hello\nworld\n", '{"a": 1}', "[]", b"\x00\x01\x02"):
        with pytest.raises(WorkloadError):
            open_workload(put(tmp_path, "x.txt", text))
    with pytest.raises(WorkloadError, match="not there"):
        open_workload(tmp_path / "nothing.csv")
    with pytest.raises(WorkloadError, match="folder"):
        open_workload(tmp_path / ".")
    path = put(tmp_path, "a.csv", AZURE)
    with pytest.raises(WorkloadError, match="did you mean"):
        open_workload(path, "azur")
    with pytest.raises(WorkloadError, match="no option"):
        open_workload(path, skip=True)
    with pytest.raises(WorkloadError, match="gzip"):
        open_workload(put(tmp_path, "z.gz", gzip.compress(AZURE.encode())[:-9]))


SAMPLES = [AZURE, MOONCAKE, SHAREGPT, OPENAI, json.dumps(OTEL)]
TEXT = [name for name in FORMATS if name not in ("servegen", "orrery")]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_the_bytes_only_our_errors_come_out(tmp_path_factory, data):
    text = bytearray(data.draw(st.sampled_from(SAMPLES)).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(len(text), begin + 30)))
        odd = st.sampled_from(
            [b"-1", b"1e999", b"null", b"[[[", b"{", b'"', b",", b"\n", b"9" * 40]
        )
        text[begin:end] = data.draw(st.one_of(st.binary(max_size=8), odd))
    path = tmp_path_factory.mktemp("f") / "fuzz.dat"
    path.write_bytes(bytes(text))
    for name in [None, *TEXT]:
        try:
            assert isinstance(open_workload(path, name), Workload)
        except OrreryError as failure:
            assert str(path) in str(failure)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    """timestamp input_length output_length hash_ids session_id chat_id parent_chat_id type
    arrival_ns input_toks output_toks input_tok_ids messages prompt max_tokens usage response body
    created spans attributes span_id start_time end_time gen_ai.input.messages conversations
    gen_ai.prompt gen_ai.output.text resourceSpans value key role content""".split()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=7), min_size=1, max_size=3), st.booleans())
def test_whatever_the_fields_only_our_errors_come_out(tmp_path_factory, rows, as_list):
    text = json.dumps(rows) if as_list else "\n".join(map(json.dumps, rows))
    path = tmp_path_factory.mktemp("f") / "fuzz.json"
    path.write_text(text)
    for name in TEXT:
        try:
            assert isinstance(open_workload(path, name), Workload)
        except OrreryError:
            pass
