"""Every format: read as its makers mean it, told from its content, refused in one sentence."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from sim.config import setting_of, settings
from sim.errors import UsageError
from workloads import FORMATS, check_trace, read, shared_prefix_tokens

DOCS = Path(__file__).parents[1] / "docs" / "traces.md"


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


@pytest.fixture
def save(tmp_path):
    def save(data, name="trace"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return save


def refused(path, *args, **options):
    with pytest.raises(UsageError) as caught:
        read(path, *args, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def prompts(workload):
    return [request.num_prompt_tokens for request in workload.requests]


MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
BAILIAN = {
    "chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40,
    "output_length": 24, "type": "text", "turn": 1, "hash_ids": [7, 8, 9],
}  # fmt: skip
WEKA = {
    "id": "a", "models": ["m"], "block_size": 4, "hash_id_scope": "local", "tool_tokens": 4,
    "requests": [
        {"t": 0.0, "type": "n", "in": 10, "out": 3, "hash_ids": [1, 2], "think_time": 0.0},
        {"t": 2.0, "type": "subagent", "agent_id": "x", "requests": [
            {"t": 1.0, "type": "n", "in": 8, "out": 2, "hash_ids": [1, 5], "think_time": 0.0},
        ]},
        {"t": 9.0, "type": "s", "in": 17, "out": 1, "hash_ids": [1, 2, 3, 4], "think_time": 5.0},
    ],
}  # fmt: skip
SHAREGPT = [
    {
        "id": "c",
        "conversations": [
            {"from": "human", "value": "hi"},
            {"from": "gpt", "value": "hello"},
            {"from": "human", "value": "bye"},
            {"from": "gpt", "value": "so long"},
        ],
    }
]
EXAMPLES = {
    "mooncake": lines(MOONCAKE),
    "bailian": lines(BAILIAN),
    "burst": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,G,4,1,5,x\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n",
    "tokens": lines({"token_ids": [1, 2, 3], "timestamp": 0, "output_length": 2}),
    "weka": json.dumps(WEKA, indent=1),
    "lmcache": lines(
        {"timestamp": 1760995991633938, "input": "a", "output": "b", "session_id": "s"}
    ),
    "sharegpt": json.dumps(SHAREGPT),
    "openai": lines({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_format_is_told_from_its_content(save, name):
    told = read(save(EXAMPLES[name]))
    named = read(save(EXAMPLES[name]), name)
    assert named.identity_block_size == told.identity_block_size
    assert prompts(named) == prompts(told)
    assert named.digest == told.digest
    assert len(told.digest) == 64


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_packed_files_are_unpacked_whatever_their_name(save, name, pack):
    plain = read(save(EXAMPLES[name]))
    packed = read(save(pack(EXAMPLES[name].encode())))
    assert prompts(packed) == prompts(plain)
    assert packed.digest != plain.digest, "of the bytes as they lie there"


@pytest.mark.parametrize("name", ["mooncake", "tokens", "lmcache", "openai", "sharegpt", "text"])
@pytest.mark.parametrize("cut", [1, 7, 30])
def test_cut_off_data_is_named_by_its_line(save, name, cut):
    example = EXAMPLES.get(name, "") * (1 if name == "sharegpt" else 3000)
    example = example or "".join(f"prompt {number}\n" for number in range(500))
    for packed in (gzip.compress(example.encode()), zstd(example.encode())):
        message = refused(save(packed[:-cut]), name)
        assert "damaged or cut-off" in message or "cut off" in message


def test_formats_are_in_the_docs_and_in_the_settings():
    rows = [
        "| `--format` | is | fields | time | ids stand for | lacks |",
        "| - | - | - | - | - | - |",
    ]
    for name, form in FORMATS.items():
        cells = (f"`{name}`", form.title, form.fields, form.time, form.block, form.lacks)
        rows.append(f"| {' | '.join(cells)} |")
    assert "\n".join(rows) in DOCS.read_text()
    choices = next(setting_of(f).choices for f in settings() if f.name == "format")
    assert choices == ("auto", *FORMATS)


def test_no_such_format(save):
    assert "--format is 'csv'" in refused(save("x"), "csv")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a,b\n1,2\n", "'a,b' is not a JSON object, nor the head of a known CSV"),
        ("Timestamp,Model,Request tokens\n1,2,3\n", "has no column Response tokens"),
        (b"\xff\xfe{\x00", "UTF-16"),
        (b"PK\x03\x04zip", "zip archive"),
        ("# a comment\n", "is not a JSON object"),
    ],
)
def test_what_is_no_trace_is_refused_without_false_hope(save, data, said):
    message = refused(save(data))
    assert said in message
    assert "--lenient" not in message


# Whole files in odd shapes.


def test_a_pretty_printed_object(save):
    text = json.dumps(MOONCAKE, indent=2)
    workload = read(save(text + "\n" + json.dumps({**MOONCAKE, "timestamp": 5}, indent=2)))
    assert prompts(workload) == [600, 600]
    assert "JSON objects over several lines" in workload.warnings[0]


def test_junk_after_an_array(save):
    path = save(json.dumps([MOONCAKE]) + "\nand more\n")
    assert f"{path}:2: something follows the end of the JSON array" in refused(path)
    path = save(json.dumps([MOONCAKE])[:-1] + " {}]")
    assert "a comma is missing" in refused(path)


def test_a_long_array_is_read_piece_by_piece(save):
    rows = [{**MOONCAKE, "timestamp": i, "note": "x" * 500} for i in range(2000)]
    path = save(json.dumps(rows, indent=1))
    assert len(read(path).requests) == 2000
    bad = json.dumps([*rows[:1500], {**MOONCAKE, "input_length": 0}, *rows], indent=1)
    (problem,) = check_trace(save(bad)).problems
    line = bad[: bad.index('"input_length": 0')].count("\n") - 1
    assert f":{line}: input_length is 0" in problem


def test_line_ends_of_old(save):
    text = lines(MOONCAKE, {**MOONCAKE, "timestamp": 3}, {**MOONCAKE, "input_length": 0})
    path = save(text.replace("\n", "\r"))
    assert f"{path}:3: input_length is 0" in refused(path)
    csv = EXAMPLES["azure"].replace("\n", "\r")
    assert prompts(read(save(csv))) == [48]


def test_separators_that_are_no_line_ends(save):
    text = '{"timestamp": 0, "input_length": 9, "hash_ids": ["a\u2028b\u0085\x1c"]}\n' * 2
    assert len(read(save(text.replace("\x1c", "\\u001c"))).requests) == 2


def test_standard_input(save, monkeypatch):
    class Stdin:
        buffer = io.BytesIO(EXAMPLES["bailian"].encode())

    monkeypatch.setattr("sys.stdin", Stdin)
    workload = read("-")
    assert (workload.name, prompts(workload)) == ("stdin", [40])
    assert workload.digest == read(save(EXAMPLES["bailian"])).digest


def test_empty_inputs(save):
    for data in ("", "\n\n", gzip.compress(b"")):
        assert "holds no request" in refused(save(data))
    assert "holds no request" in refused("/dev/null")


# One row and another.


@pytest.mark.parametrize(
    "extra",
    [{"lora_id": 3}, {"cache_salt": "s"}, {"mm_hashes": ["f00"]}, {"extra_keys": [1]},
     {"lora_name": "sql"}, {"multi_modal_hash": "a"}],
)  # fmt: skip
@pytest.mark.parametrize("name", ["mooncake", "tokens"])
def test_extra_keys_keep_equal_prefixes_apart(save, name, extra):
    row = json.loads(EXAMPLES[name])
    path = save(lines(row, {**row, **extra}, row, {**row, **extra}, {**row, "lora_id": None}))
    shared = shared_prefix_tokens(read(path).requests).tolist()
    assert shared == [0, 0] + 3 * [prompts(read(path))[0]]


@pytest.mark.parametrize(
    ("stamps", "unit"),
    [
        ([1_700_000_000.5, 1_700_000_001.75], "seconds"),
        ([1_700_000_000_000_500, 1_700_000_001_250_500 + 500_000], "microseconds"),
        ([1_700_000_000_000_000_500, 1_700_000_001_250_000_500], "nanoseconds"),
    ],
)
def test_times_since_1970_in_another_unit_are_seen(save, stamps, unit):
    path = save(lines(*({**MOONCAKE, "timestamp": stamp} for stamp in stamps)))
    workload = read(path)
    assert workload.requests[1].arrival_ns == pytest.approx(1.25e9, rel=0.5)
    assert f"looks like {unit} since 1970" in workload.warnings[0]
    assert "--time-unit ms takes them as such" in workload.warnings[0]


def test_times_since_1970_in_the_expected_unit(save):
    path = save(lines({**BAILIAN, "timestamp": 1_700_000_000.25}))
    (warning,) = read(path).warnings
    assert "the earliest timestamp is 1700000000.25, which was taken as 0" in warning


@pytest.mark.parametrize(
    ("gap", "unit", "doubted"),
    [(1, "ms", True), (1, "s", False), (700, "s", True), (5, "ms", False), (5.5, "ms", True)],
)
def test_spans_that_make_no_sense_are_doubted(save, gap, unit, doubted):
    rows = [{**MOONCAKE, "timestamp": gap * i} for i in range(50)]
    warnings = read(save(lines(*rows)), time_unit=unit).warnings
    assert any("makes little sense" in warning for warning in warnings) == doubted


def test_newer_names_of_fields(save):
    row = {"created_time": 4, "input_tokens": 600, "output_tokens": 5, "hash_ids": [0, 1]}
    (request,) = read(save(lines(row))).requests
    assert (request.num_prompt_tokens, request.num_output_tokens) == (600, 5)


def test_numbers_as_text_are_plain_numbers(save):
    for bad in ("1_000", "\u0661\u0662", "0x10", "nan", " "):
        assert "input_length is" in refused(save(lines({**MOONCAKE, "input_length": bad})))


# Sessions.


def test_bailian_turns_hold_the_answers_before_them(save):
    second = {**BAILIAN, "chat_id": 2, "parent_chat_id": 1, "timestamp": 9, "input_length": 100,
              "hash_ids": [7, 8, 20, 21, 22, 23, 24]}  # fmt: skip
    workload = read(save(lines(BAILIAN, second)))
    # 40 prompt and 24 output tokens, of which the last is never fed back.
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, 63]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 40]
    one, two = workload.requests
    assert one.content.block_keys(16).tolist() == two.content.block_keys(16)[:4].tolist()
    short = {**second, "input_length": 60, "hash_ids": [7, 8, 20, 21]}
    workload = read(save(lines(BAILIAN, short)))
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, 32]
    other = {**second, "hash_ids": [7, 3, 20, 21, 22, 23, 24]}
    workload = read(save(lines(BAILIAN, other)))
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, 16]


def test_bailian_sessions_follow_parents(save):
    rows = [
        BAILIAN,
        {**BAILIAN, "chat_id": 2, "parent_chat_id": 1},
        {**BAILIAN, "chat_id": 3, "parent_chat_id": 2},
        {**BAILIAN, "chat_id": 4, "parent_chat_id": 1},
        {**BAILIAN, "chat_id": 5, "parent_chat_id": 99},
    ]
    workload = read(save(lines(*rows)))
    assert [request.session_id for request in workload.requests] == ["1", "1", "1", "4", "5"]
    said = " ".join(workload.warnings)
    assert "1 row whose turn before is not in the trace" in said
    assert "1 row that branch off a turn already continued" in said


def turns(*ids, length=1024):
    return [
        {**MOONCAKE, "timestamp": 1000 * i, "session_id": "s", "input_length": length * (i + 1),
         "output_length": 256, "hash_ids": hashes}
        for i, hashes in enumerate(ids)
    ]  # fmt: skip


def test_cumulative_and_delta_turns_are_told_apart(save):
    workload = read(save(lines(*turns([1, 2], [1, 2, 3, 4]))))
    assert prompts(workload) == [1024, 2048]
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, 1024 + 255]
    rows = turns([1, 2], [3, 4, 5, 6])
    rows[1]["input_length"] = 2000
    workload = read(save(lines(*rows)))
    assert prompts(workload) == [1024, 1024 + 256 + 2000]
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, 1024 + 255]
    assert "(delta); --turns cumulative" in workload.warnings[0]
    assert prompts(read(save(lines(*rows)), turns="cumulative")) == [1024, 2000]


def test_deltas_pile_up_and_stay_apart(save):
    rows = turns([1, 2], [3, 4], [5, 6], length=1024)
    for row in rows:
        row["input_length"] = 1000
    twin = [{**row, "session_id": "t", "timestamp": row["timestamp"] + 1} for row in rows]
    workload = read(save(lines(*rows, *twin)))
    assert prompts(workload) == [1000, 1000, 2256, 2256, 3512, 3512]
    # The twin's first prompt is equal; its answer is its own, and so is all that follows.
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 1000, 1000, 1000, 2256, 2256]
    shuffled = read(save(lines(*rows[::-1], *twin)))
    assert prompts(shuffled) == prompts(workload), "turns follow one another in time"


def test_weka_sessions_and_subagents(save):
    workload = read(save(json.dumps(WEKA)))
    assert workload.identity_block_size == 4
    requests = workload.requests
    assert [r.session_id for r in requests] == ["a", "a/x", "a"]
    assert [r.arrival_ns / 1e9 for r in requests] == [0, 3, 9]
    assert [r.think_ns for r in requests] == [None, None, 5 * 10**9]
    assert shared_prefix_tokens(requests).tolist() == [0, 4, 10]
    # The third prompt goes on after the first's answer: 10 + 3 tokens, less the last.
    assert shared_prefix_tokens(requests, outputs=True).tolist() == [0, 4, 12]
    bad = {**WEKA, "requests": [WEKA["requests"][1]["requests"][0] | {"in": 3}]}
    assert "requests[0]: hash_ids has 2 ids, but in 3 has 0 full blocks" in refused(
        save(json.dumps(bad))
    )


def test_weka_ids_are_local_unless_global(save, tmp_path):
    folder = tmp_path / "sessions"
    for scope, shared in (("local", [0, 0]), ("global", [0, 8])):
        for name in "ab":
            session = {**WEKA, "id": name, "hash_id_scope": scope, "requests": WEKA["requests"][:1]}
            save(json.dumps(session), f"sessions/{name}.json")
        save("not a trace", "sessions/README.md")
        assert shared_prefix_tokens(read(folder).requests).tolist() == shared
    archive = tmp_path / "sessions.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, "sessions")
    packed = save(zstd(archive.read_bytes()), "sessions.tar.zst")
    for path in (archive, packed):
        assert shared_prefix_tokens(read(path).requests).tolist() == [0, 8]
    assert len(read(packed, num_requests=1).requests) == 1
    save(EXAMPLES["mooncake"], "two/a.jsonl")
    save(EXAMPLES["mooncake"], "two/b.jsonl")
    assert "holds several files of Mooncake" in refused(tmp_path / "two")


# Texts.


def bytes_of(*pieces):
    return sum(len(piece.encode()) for piece in pieces)


def test_conversations_become_turns(save):
    workload = read(save(json.dumps(SHAREGPT)))
    head, tail = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    first = bytes_of(head, "hi", tail)
    assert prompts(workload) == [
        first, first + bytes_of("hello", "<|im_end|>\n", head, "bye", tail)
    ]  # fmt: skip
    assert [r.num_output_tokens for r in workload.requests] == [5, 7]
    assert [r.session_id for r in workload.requests] == ["c", "c"]
    # The second prompt begins with the first and its answer.
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, first + 4]
    said = " ".join(workload.warnings)
    assert "bytes of UTF-8" in said
    assert "no timestamps" in said
    said = [("user", "hi"), ("assistant", "hello"), ("user", "bye"), ("assistant", "so long")]
    chat = {"messages": [{"role": role, "content": content} for role, content in said]}
    assert prompts(read(save(lines(chat)))) == prompts(workload)


def test_openai_batch(save):
    body = {"model": "m", "max_completion_tokens": 7, "messages": [
        {"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]}  # fmt: skip
    row = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    rows = [
        row,
        {**row, "custom_id": "r2"},
        {**row, "custom_id": "r3", "body": {**body, "model": "other"}},
    ]
    workload = read(save(lines(*rows)))
    assert [r.request_id for r in workload.requests] == ["r1", "r2", "r3"]
    assert [r.num_output_tokens for r in workload.requests] == [7, 7, 7]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, prompts(workload)[0], 0]
    assert "custom_id 'r1' is already that of line 1" in refused(save(lines(row, row)))


def test_images_are_one_token_and_told_apart(save):
    def row(url):
        part = {"type": "image_url", "image_url": {"url": url}}
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]}

    workload = read(save(lines(row("a"), row("b"), row("a"))))
    same = bytes_of("<|im_start|>user\n", "see")
    assert shared_prefix_tokens(workload.requests).tolist() == [0, same, prompts(workload)[0]]
    assert "3 rows with an image" in " ".join(workload.warnings)


def test_completions_and_plain_prompts(save):
    workload = read(save(lines({"prompt": "caf\u00e9"}, {"prompt": "cafe", "output": "yes"})))
    assert prompts(workload) == [5, 4]
    assert [r.num_output_tokens for r in workload.requests] == [1, 3]
    assert prompts(read(save("one\n\ntwo words\n"), "text")) == [3, 9]


def test_token_ids_with_sessions(save):
    rows = [
        {"token_ids": [1, 2, 3], "timestamp": 0, "output_length": 2, "session_id": "s"},
        {"token_ids": [1, 2, 3, 8, 9, 4], "timestamp": 9, "output_token_ids": [5],
         "session_id": "s"},
    ]  # fmt: skip
    workload = read(save(lines(*rows)))
    assert prompts(workload) == [3, 6]
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, 4]
    delta = [rows[0], {**rows[1], "token_ids": [7, 7]}]
    workload = read(save(lines(*delta)))
    assert prompts(workload) == [3, 3 + 2 + 2]
    assert workload.requests[1].num_output_tokens == 1


def test_stated_lengths_of_token_ids(save):
    row = {"token_ids": [1, 2, 3], "timestamp": 0, "input_length": 4}
    assert "token_ids has 3 ids, but input_length is 4" in refused(save(lines(row)))
    workload = read(save(lines(row, row, {**row, "input_length": 2})), mode="lenient")
    assert prompts(workload) == [4, 4, 2]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 3, 2]


def test_a_hugging_face_tokenizer(save, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "hello": 1, "world": 2}
    model = tokenizers.models.WordLevel(words, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    prompts_path = save(lines({"prompt": "hello world"}, {"prompt": "hello \ud800 you"}))
    workload = read(prompts_path, tokenizer=str(path))
    assert prompts(workload) == [2, 3]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 1]
    assert "bytes" not in " ".join(workload.warnings)
    assert "is no tokenizer.json" in refused(prompts_path, tokenizer=str(prompts_path))
    assert "is not a file" in refused(prompts_path, tokenizer="gpt2")
    assert "is unknown" in refused(prompts_path, tokenizer="tiktoken:none")


def test_tiktoken(save, monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)} | {b"he": 256}
    encoding = tiktoken.Encoding("t", pat_str=r".+", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: encoding)
    assert prompts(read(save(lines({"prompt": "hehe!"})), tokenizer="tiktoken:t")) == [3]


def test_a_missing_library_is_named_with_its_installation(save, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    path = save("{}", "tokenizer.json")
    message = refused(save(lines({"prompt": "x"})), tokenizer=str(path))
    assert "pip install 'prefixsim[tokenizers]'" in message


def test_options_about_what_a_format_lacks_are_refused(save):
    path = save(EXAMPLES["mooncake"])
    assert "--tokenizer bytes has no meaning for Mooncake" in refused(path, tokenizer="bytes")
    for name in ("azure", "tokens", "openai"):
        message = refused(save(EXAMPLES[name]), trace_block_size=16)
        assert "--trace-block-size 16 has no meaning for" in message


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [1]},
        {"ts": 1.5, "events": [["BlockStored", [1, 2], None, [5, 6, 7, 8], 2, None]]},
        {"timestamp": 7, "event": {"data": {"stored": {"parent_hash": 3, "blocks": []}}}},
        {"type": "AllBlocksCleared"},
    ],
)
def test_events_of_the_cache_are_not_taken_for_requests(save, event):
    # With arrivals made, the token ids of stored blocks would pass for prompts that hit nothing.
    message = refused(save(lines(event, event)), timed=False)
    assert "is a log of KV-cache events" in message
    message = refused(save(lines({"version": 1}, event)))
    assert "is a log of KV-cache events" in message


def test_requests_that_speak_of_block_hashes_are_requests(save):
    tool = {"name": "lookup", "parameters": {"block_hash": {"type": "string"}}}
    row = {"messages": [{"role": "user", "content": '"block_hash": 1'}], "tools": [tool]}
    assert len(read(save(lines(row)), timed=False).requests) == 1
    assert len(read(save(lines({**MOONCAKE, "block_hash": "x"}))).requests) == 1


def test_a_field_in_nanoseconds_is_read_as_such_beside_others(save):
    rows = lines(
        {"arrival_time_ns": 5_000_000_000, "token_ids": [1], "output_length": 1},
        {"timestamp": 9000, "token_ids": [2], "output_length": 1},
    )
    assert [r.arrival_ns for r in read(save(rows)).requests] == [0, 4_000_000_000]
    alone = lines(
        {"arrival_time_ns": 3, "token_ids": [1]}, {"arrival_time_ns": 9, "token_ids": [1]}
    )
    workload = read(save(alone), time_unit="s")
    assert [r.arrival_ns for r in workload.requests] == [0, 6]
    assert "the earliest timestamp is 3, which was taken as 0" in " ".join(workload.warnings)


BAD_FIRST = {
    "mooncake": ({**MOONCAKE, "input_length": 0, "timestamp": 1_700_000_000}, MOONCAKE),
    "bailian": ({**BAILIAN, "timestamp": 1.7e12, "turn": 1, "input_length": -1}, BAILIAN),
    "sharegpt": (
        {"id": "a", "conversations": [{"from": "human", "value": "hi"}]},
        {**SHAREGPT[0], "timestamp": 5},
    ),
    "openai": (
        {"timestamp": 1_700_000_000, "messages": [{"role": "user", "content": 5}]},
        {"timestamp": 7, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    ),
    "tokens": (
        {"timestamp": 1_700_000_000, "token_ids": [1, -1]},
        {"timestamp": 7, "token_ids": [1, 2], "output_length": 2},
    ),
    "lmcache": (
        {"timestamp": 7, "input": 5, "session_id": "a", "output": ""},
        {"timestamp": 1_700_000_000_000_000, "input": "x", "session_id": "a", "output": "y"},
    ),
}


@pytest.mark.parametrize("name", BAD_FIRST)
def test_a_row_that_is_skipped_leaves_no_trace(save, name):
    bad, good = BAD_FIRST[name]
    later = {**good, "timestamp": good["timestamp"] + 2000}
    later |= {key: "other" for key in ("id", "chat_id") if key in good}
    clean = read(save(lines(good, later)), name)
    odd = read(save(lines(bad, good, bad, later)), name, mode="lenient")
    assert [r.arrival_ns for r in odd.requests] == [r.arrival_ns for r in clean.requests]
    assert (
        shared_prefix_tokens(odd.requests).tolist() == shared_prefix_tokens(clean.requests).tolist()
    )
    assert odd.num_skipped == 2
    # What is said of the rows that were taken is the same.
    assert [said for said in odd.warnings if "2 rows skipped" not in said] == list(clean.warnings)
    checked = check_trace(save(lines(bad, good)), name)
    assert len(checked.problems) == 1


def test_weka_sessions_of_one_id_are_two(save, tmp_path):
    for name in ("a", "b"):
        save(json.dumps(WEKA), f"both/{name}.json")
    workload = read(tmp_path / "both")
    assert len({r.session_id for r in workload.requests}) == 4, "two sessions with a subagent each"
    assert "1 row of sessions whose id an earlier one has" in " ".join(workload.warnings)


def test_weka_rows_are_whole_prompts_even_where_turns_share_nothing(save):
    rows = [
        {"t": 0.0, "in": 12, "out": 1, "hash_ids": [1, 2, 3]},
        {"t": 1.0, "in": 8, "out": 1, "hash_ids": [8, 9]},
    ]
    assert prompts(read(save(json.dumps({**WEKA, "requests": rows})))) == [12, 8]


@pytest.mark.parametrize(
    ("key", "is_scope"),
    [
        *((key, True) for key in ("lora", "lora_id", "LoRA_name", "loraName", "adapter", "salt")),
        *(
            (key, True)
            for key in ("cache_salt", "cacheSalt", "extra_keys", "extra_key", "extraKeys")
        ),
        *((key, True) for key in ("mm_hashes", "multi_modal_data", "multimodal", "image_hash")),
        *((key, False) for key in ("exploration_rate", "result", "basalt", "floral", "command")),
        *((key, False) for key in ("my_extra_keys", "hmm_state", "image", "saltiness")),
    ],
)
def test_which_keys_keep_equal_prefixes_apart(save, key, is_scope):
    rows = lines({**MOONCAKE, key: "a"}, {**MOONCAKE, key: "b"})
    shared = shared_prefix_tokens(read(save(rows)).requests).tolist()
    assert shared == [0, 0 if is_scope else 600]


def test_a_first_row_longer_than_what_is_looked_at(save):
    long = "x" * (1 << 16)
    row = {"timestamp": 1_700_000_000_000_000, "input": long, "session_id": "s", "output": "y"}
    assert prompts(read(save(lines(row)))) == [len(long)]
    assert "do not tell its format; name it with --format" in refused(
        save(lines({"a": long, **MOONCAKE}))
    )
    row = {"model": "m", "input": "hello", "max_output_tokens": 3}
    assert prompts(read(save(lines(row, row)), timed=False)) == [5, 5]


def test_what_follows_a_broken_element_of_an_array_is_said_to_be_lost(save):
    text = f'[{json.dumps(MOONCAKE)},\n{{"broken": ,\n{json.dumps(MOONCAKE)}]'
    workload = read(save(text), mode="lenient")
    assert len(workload.requests) == 1
    assert "so that nothing after it can be read" in " ".join(workload.warnings)


def test_a_column_that_is_there_twice_is_refused(save):
    path = save(
        "TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4,5,1\n"
    )
    assert "has the column ContextTokens more than once" in refused(path)


def test_a_chat_id_that_is_there_twice_is_refused(save):
    rows = ({**BAILIAN, "request_id": name} for name in "ab")
    assert "chat_id '1' is already that of an earlier row" in refused(save(lines(*rows)))


@pytest.mark.parametrize("bad", [b"7,\xe9,4,1,5,x\n", b'7,"G"x,4,1,5,x\n', b'7,"G,4,1,5,x\n'])
def test_one_broken_line_of_a_csv_leaves_the_others(save, bad):
    head, good = EXAMPLES["burst"].encode().splitlines(keepends=True)
    path = save(head + good + bad + good * 3)
    workload = read(path, mode="lenient")
    assert (len(workload.requests), workload.num_skipped) == (4, 1)
    checked = check_trace(path)
    assert len(checked.problems) == 1
    assert f"{path}:3: " in checked.problems[0]
    assert f"{path}:3: " in refused(path)


def test_a_turn_of_a_subagent_without_a_time_stamp_follows_the_one_before(save):
    request = {"in": 4, "out": 1, "hash_ids": [1]}
    turns = [{"t": 0, **request}, {"think_time": 5, **request}]
    rows = [{"t": 0, **request}, {"t": 100, "agent_id": "a", "requests": turns}]
    workload = read(save(json.dumps({**WEKA, "requests": rows})))
    assert [r.arrival_ns // 10**9 for r in workload.requests] == [0, 100, 105]


def test_weka_sessions_without_a_usable_request_leave_no_trace(save):
    bad = {**WEKA, "block_size": 16, "requests": [{**WEKA["requests"][0], "t": -1}]}
    empty = {**bad, "requests": []}
    clean = read(save(lines(WEKA)), "weka")
    odd = read(save(lines(bad, empty, WEKA, bad)), "weka", mode="lenient")
    assert odd.identity_block_size == 4
    assert [r.session_id for r in odd.requests] == [r.session_id for r in clean.requests]
    assert [said for said in odd.warnings if "skipped" not in said.split(": ", 1)[1]] == list(
        clean.warnings
    )


def test_a_session_is_not_taken_for_an_agent_of_another(save):
    sessions = [{**WEKA, "id": "s"}, {**WEKA, "id": "s/x"}]
    names = {r.session_id for r in read(save(lines(*sessions)), "weka").requests}
    assert names == {"s", "s/x", "s%2Fx", "s%2Fx/x"}


def test_a_conversation_is_taken_whole_or_not_at_all(save):
    said = [{"role": role, "content": "x"} for role in ("user", "assistant") * 2]
    rows = lines(
        {"request_id": "a/1", "messages": said[:1], "max_tokens": 3},
        {"request_id": "a", "messages": said},
        {"request_id": "b", "messages": said},
    )
    workload = read(save(rows), mode="lenient", timed=False)
    assert [r.request_id for r in workload.requests] == ["a/1", "b/0", "b/1"]
    assert len(read(save(rows), mode="lenient", timed=False, num_requests=2).requests) == 2


@pytest.mark.parametrize("first", ["[INFO] started", "[1]", "[", "{bad"])
def test_a_first_line_that_is_none_is_skipped(save, first):
    rows = f"{first}\n" + lines(MOONCAKE, MOONCAKE)
    workload = read(save(rows), "mooncake", mode="lenient")
    if first != "[":  # an array, for all that can be told
        assert len(workload.requests) == 2
