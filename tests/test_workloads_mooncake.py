import gzip
import json

import pytest

from sim.errors import UsageError
from workloads import read, read_mooncake, shared_prefix_tokens


def row(timestamp=0, input_length=512, output_length=5, hash_ids=(0,), **more):
    fields = {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": hash_ids,
        **more,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})


@pytest.fixture
def write(tmp_path):
    def write(*lines, name="trace.jsonl"):
        path = tmp_path / name
        data = lines[0] if isinstance(lines[0], bytes) else "\n".join([*lines, ""]).encode()
        path.write_bytes(data)
        return path

    return write


def refused(path, **options):
    with pytest.raises(UsageError) as caught:
        read_mooncake(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert str(path) in message
    return message


def arrivals(workload):
    return [request.arrival_ns for request in workload.requests]


def ids(workload):
    return [request.request_id for request in workload.requests]


D01 = [(6758, list(range(14))), (7322, [*range(13), 100, 101])]


@pytest.mark.parametrize(
    ("block_size", "second", "repeat"),
    [(16, 6656, 6752), (48, 6624, 6720), (512, 6656, 6656), (1024, 6144, 6144)],
)
def test_trace_blocks_become_engine_blocks(write, block_size, second, repeat):
    path = write(*(row(i, length, 1, hashes) for i, (length, hashes) in enumerate([*D01, D01[0]])))
    requests = read_mooncake(path).requests
    keys = [request.content.block_keys(block_size) for request in requests]

    def cached(number, earlier):
        limit = (requests[number].num_prompt_tokens - 1) // block_size
        seen = set(keys[earlier].tolist())
        hits = 0
        while hits < limit and keys[number][hits] in seen:
            hits += 1
        return hits * block_size

    assert cached(1, 0) == second
    assert cached(2, 0) == repeat


def test_milliseconds(write):
    path = write(row(0), row(3000, 1536, 50, [0, 1, 2]), row(6000, 1536, 50, [0, 1, 3]))
    workload = read_mooncake(path)
    assert arrivals(workload) == [0, 3 * 10**9, 6 * 10**9]
    assert ids(workload) == ["0", "1", "2"]
    assert workload.name == "trace"
    assert workload.identity_block_size == 512
    assert workload.warnings == ()
    last = workload.requests[2]
    assert (last.num_prompt_tokens, last.num_output_tokens) == (1536, 50)
    assert last.content.num_tokens == 1586
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 512, 1024]


def test_a_partial_last_block_is_cut_and_outputs_are_own(write):
    path = write(row(0, 600, 900, [0, 1]), row(1, 1536, 5, [0, 1, 2]), row(2, 600, 900, [0, 1]))
    requests = read_mooncake(path).requests
    assert shared_prefix_tokens(requests, outputs=True).tolist() == [0, 600, 600]
    one, two, three = (request.content.token_ids(0, 1500).tolist() for request in requests)
    assert one[:600] == two[:600] == three[:600]
    assert len({*one[600:], *two[600:], *three[600:]}) == 2 * 900 + 900
    assert len({*one, *two}) == 1500 + 900


def test_arrivals_count_from_the_first(write):
    workload = read_mooncake(write(row(1_700_000_000_000), row(1_700_000_000_250.5)))
    assert arrivals(workload) == [0, 250_500_000]
    assert "the earliest timestamp is 1700000000000, which was taken as 0" in workload.warnings[0]


def test_seconds_of_bailian(write):
    chat = {"parent_chat_id": -1, "type": "text", "turn": 1}
    path = write(
        row(61.114, 40, 12, [1089, 1090, 1091], chat_id=159, **chat),
        row(62.5, 60, 8, [1089, 1090, 1092, 1093], chat_id=160, **chat),
        row(70.0, 16, 4, [2000], chat_id=161, **chat),
    )
    workload = read(path)
    assert arrivals(workload) == [0, 1_386_000_000, 8_886_000_000]
    assert workload.identity_block_size == 16
    message = refused(path)
    assert f"{path}:1: hash_ids has 3 ids, but input_length 40 needs 1" in message
    assert "--trace-block-size" in message


def test_cumulative_turns(write):
    path = write(row(0, 32, 8, [11, 12]), row(9.5, 64, 8, [11, 12, 13, 14]))
    requests = read_mooncake(path, trace_block_size=16).requests
    assert [request.num_prompt_tokens for request in requests] == [32, 64]
    assert shared_prefix_tokens(requests).tolist() == [0, 32]


def test_unsorted_rows_keep_ties_in_order(write):
    times = {"a": 0, "b": 2000, "c": 1000, "d": 1000, "e": 3000}
    workload = read_mooncake(write(*(row(time, request_id=i) for i, time in times.items())))
    assert ids(workload) == ["a", "c", "d", "b", "e"]
    assert "2 rows out of order" in workload.warnings[0]


def test_number_of_ids_must_fit(write):
    lines = [
        row(0, 500, 5, [0]),
        row(200, 20, 8, [0, 1]),
        row(400, 600, 6, [0, 1, 2]),
        row(600, 1500, 6, [0, 1]),
    ]
    for number in (2, 3, 4):
        lines_before = [row(i, 512, request_id=f"x{i}") for i in range(number - 1)]
        path = write(*lines_before, lines[number - 1])
        assert f"{path}:{number}: " in refused(path)
    workload = read_mooncake(write(*lines), lenient=True)
    assert [request.num_prompt_tokens for request in workload.requests] == [500, 20, 600, 1500]
    assert "3 rows with a number of hash_ids" in workload.warnings[0]
    assert workload.num_skipped == 0
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 20, 500, 600]
    again = read_mooncake(write(lines[3], row(700, 1500, 6, [0, 1])), lenient=True)
    assert shared_prefix_tokens(again.requests).tolist() == [0, 1024]


def test_missing_fields(write):
    good = [row(0, 512, 20), row(100, output_length=None), row(200, 700, 20, None)]
    workload = read_mooncake(write(*good))
    assert [request.num_output_tokens for request in workload.requests] == [20, 1, 20]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 512, 0]
    assert "1 row without output_length" in workload.warnings[0]
    assert "1 row without hash_ids" in workload.warnings[1]
    no_length = row(300, None, 20, None)
    no_time = row(None)
    path = write(*good, no_length)
    assert f"{path}:4: input_length is missing" in refused(path)
    message = refused(write(*good, no_time))
    assert f"{path}:4: timestamp is missing" in message
    assert "--arrival" in message
    assert "--arrival" in refused(write(no_time, no_time))
    lenient = read_mooncake(write(*good, no_length, no_time), lenient=True)
    assert (len(lenient.requests), lenient.num_skipped) == (3, 2)


def test_untimed_rows_wait_for_arrivals(write):
    workload = read_mooncake(write(row(None), row(None)), timed=False)
    assert arrivals(workload) == [0, 0]
    mixed = read_mooncake(write(row(5), row(9), row(None), row(12)), timed=False)
    assert ids(mixed) == ["0", "1", "2", "3"]
    assert arrivals(mixed) == [0, 4 * 10**6, 4 * 10**6, 7 * 10**6]


def test_no_prefix_information(write):
    workload = read_mooncake(write(row(hash_ids=None), row(hash_ids=None)))
    assert not workload.has_prefix_info
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 0]


def test_bom_crlf_blank_lines(write):
    rows = [row(0), "", row(10) + "  ", "   ", row(20)]
    assert len(read_mooncake(write(b"\xef\xbb\xbf" + "\r\n".join(rows).encode())).requests) == 3


BAD = {
    "timestamp is nan": '{"timestamp": NaN, "input_length": 512, "output_length": 5}',
    "timestamp is inf": '{"timestamp": Infinity, "input_length": 512, "output_length": 5}',
    "timestamp is -250": row(-250),
    "timestamp is -1e-09": row(-1e-9),
    "timestamp is 9223372036854.777": row(2**63 / 1e6 + 0.001),
    "timestamp is 1700000000000000": row(1_700_000_000_000_000),
    "input_length is 0": row(0, 0, hash_ids=[]),
    "input_length is 10.5": row(0, 10.5),
    "input_length is True": row(0, True),
    "input_length is 'many'": row(0, "many"),
    "input_length is 1000000000000": row(0, 10**12),
    "output_length is -1": row(0, output_length=-1),
    "hash_ids holds -1": row(hash_ids=[-1]),
    "hash_ids holds 1e+19": row(hash_ids=[1e19]),
    "hash_ids holds 1.5": row(hash_ids=[1.5]),
    "hash_ids holds None": row(hash_ids=[None]),
    "hash_ids holds True": row(hash_ids=[True]),
    "hash_ids is 7": row(hash_ids=7),
    "hash_ids has 0 ids": row(hash_ids=[]),
    "delay is -1": row(delay=-1),
    "request_id is [1]": row(request_id=[1]),
    "session_id is 1.5": row(session_id=1.5),
    "[1] is not a JSON object": "[1]",
    "'a,b' is not a JSON object": "a,b",
    "is not a whole JSON object": '{"timestamp": }',
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_rows_are_refused_or_skipped(write, reason):
    path = write(row(request_id="x"), BAD[reason], row(request_id="y"))
    message = refused(path)
    assert f"{path}:2: " in message
    assert reason in message
    if reason != "hash_ids has 0 ids":
        workload = read_mooncake(path, lenient=True)
        assert ids(workload) == ["x", "y"]
        assert workload.num_skipped == 1
        assert reason in workload.warnings[0]


def test_numbers_as_text_and_no_output_are_accepted(write):
    workload = read_mooncake(write(row(0), row(1000, output_length=0), row("3000", "512", "5")))
    assert arrivals(workload) == [0, 10**9, 3 * 10**9]
    assert [request.num_output_tokens for request in workload.requests] == [5, 0, 5]
    assert [request.content.num_tokens for request in workload.requests] == [517, 512, 517]


def test_a_row_cut_off_at_the_end(write):
    data = "\n".join([row(0), row(10, 1024, 5, [0, 1]), row(20)[:40]]).encode()
    path = write(data)
    assert f"{path}:3: the last line is cut off" in refused(path)
    workload = read_mooncake(path, lenient=True)
    assert (len(workload.requests), workload.num_skipped) == (2, 1)
    assert "line 3" in workload.warnings[0]


def test_an_array_is_read_all_the_same(write):
    rows = [json.loads(row(0)), json.loads(row(10, 1024, 5, [0, 1]))]
    text = json.dumps(rows, indent=2)
    workload = read_mooncake(write(text.encode()))
    assert arrivals(workload) == [0, 10**7]
    assert "one JSON array" in workload.warnings[0]
    assert len(read_mooncake(write(text.encode()), num_requests=1).requests) == 1
    path = write(text[:-30].encode())
    assert f"{path}:10: the JSON array is cut off" in refused(path)
    assert len(read_mooncake(path, lenient=True).requests) == 1


def test_text_stays_printable_and_whole(write, capsys):
    lines = [
        row(0, 8, text_input="caf\u00e9 \U0001f98a"),
        '{"timestamp": 5, "input_length": 8, "output_length": 2, "hash_ids": [1],'
        ' "request_id": "line\u2028separator \u0085 next"}',
        '{"timestamp": 9, "input_length": 8, "output_length": 2, "hash_ids": [2],'
        ' "request_id": "lone \\ud83d surrogate", "session_id": "\\ud83d"}',
    ]
    workload = read_mooncake(write(*lines))
    assert len(workload.requests) == 3
    for request in workload.requests:
        request.request_id.encode()
    assert workload.requests[2].session_id == "\\ud83d"
    refused(write('{"timestamp": "\\ud83d", "input_length": 8}')).encode()


def test_wide_and_text_ids_stay_distinct(write):
    wide = [2**64, 2**64 + 1, 10**40, "7", 7, "a"]
    workload = read_mooncake(write(*(row(0, hash_ids=[i]) for i in wide), row(0, hash_ids=[7])))
    assert shared_prefix_tokens(workload.requests).tolist() == [0] * 6 + [512]


def test_an_id_after_another_prefix_is_another_block(write):
    workload = read_mooncake(write(row(0, 1024, 5, [1, 2]), row(1, 1024, 5, [3, 2])))
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 0]
    assert "ids that follow more than one prefix: 1;" in workload.warnings[0]


def test_request_ids_must_differ(write):
    path = write(row(request_id="a"), row(), row(request_id="a"))
    assert f"{path}:3: request_id 'a' is already that of line 1" in refused(path)
    assert ids(read_mooncake(path, lenient=True)) == ["a", "1"]


def test_sessions(write):
    lines = [
        row(100, session_id="s"),
        row(None, 1024, hash_ids=[0, 1], session_id="s", delay=250.5),
        row(200, session_id=7, priority=3),
    ]
    first, other, later = read_mooncake(write(*lines)).requests
    assert (first.session_id, first.think_ns) == ("s", None)
    assert (other.session_id, other.think_ns) == ("7", None)
    assert (later.session_id, later.think_ns) == ("s", 250_500_000)
    assert later.arrival_ns == 250_500_000, "its session's last arrival and the delay"


def test_reading_stops_early(write):
    path = write(row(0), row(1), "this is never looked at")
    assert len(read_mooncake(path, num_requests=2).requests) == 2


def test_gzip(write):
    packed = gzip.compress("\n".join([row(0), row(1)]).encode())
    assert len(read_mooncake(write(packed, name="trace.jsonl.gz")).requests) == 2
    long = "\n".join(row(i, hash_ids=[i]) for i in range(5000)).encode()
    path = write(gzip.compress(long)[:-2000])
    assert "damaged or cut-off gzip data, which ends here" in refused(path)
    lenient = read_mooncake(path, lenient=True)
    assert lenient.num_skipped == 1
    assert len(lenient.requests) > 100
    assert "gzip" in refused(write(b"\x1f\x8b nonsense"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<!DOCTYPE html>\n<html></html>", "looks like HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"", "holds no request"),
        (b"\n \n", "holds no request"),
        (b"\x00\x01\x02", "binary"),
        (b'{"a": "\xff"}\n', "not UTF-8"),
        (b"(\xb5/\xfd....", "zstd"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"timestamp": ' + b"1" * 5000 + b"}\n", "a number is too long"),
    ],
)
def test_what_is_no_trace(write, data, said):
    assert said in refused(write(data))


def test_no_file_and_options_out_of_range(tmp_path):
    assert "is a directory" in refused(tmp_path)
    assert "cannot be read" in refused(tmp_path / "none")
    with pytest.raises(UsageError, match="--trace-block-size is 0"):
        read_mooncake(tmp_path, trace_block_size=0)
    with pytest.raises(UsageError, match="--trace-block-size is 9223372036854775808"):
        read_mooncake(tmp_path, trace_block_size=2**63)
    with pytest.raises(UsageError, match="--num-requests is 0"):
        read_mooncake(tmp_path, num_requests=0)


def test_a_request_of_any_size_loads(write):
    path = write(row(0), row(10, 131_072, 2000, list(range(256))), row(20))
    assert [r.num_prompt_tokens for r in read_mooncake(path).requests] == [512, 131_072, 512]
