"""Odd files as people have them: what they must be read as, and what must be said of them."""

import json

import pytest

from sim.errors import UsageError
from workloads import check_trace, describe, read, shared_prefix_tokens
from workloads.write import write_trace

MOONCAKE = {"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}
BAILIAN = {
    "chat_id": 1, "parent_chat_id": -1, "timestamp": 1, "input_length": 40, "output_length": 4,
    "hash_ids": [7, 8, 9],
}  # fmt: skip
TOKENS = {"timestamp": 0, "token_ids": [1, 2], "output_length": 1}


@pytest.fixture
def save(tmp_path):
    def save(*rows):
        """Write bytes, text, or rows of JSON."""
        path = tmp_path / "trace"
        parts = [
            row if isinstance(row, bytes) else row.encode() if isinstance(row, str)
            else json.dumps(row).encode() + b"\n" for row in rows
        ]  # fmt: skip
        path.write_bytes(b"".join(parts))
        return path

    return save


def refused(path, *args, **options):
    with pytest.raises(UsageError) as caught:
        read(path, *args, **options)
    return str(caught.value)


def shared(path, *args, **options):
    return shared_prefix_tokens(read(path, *args, **options).requests).tolist()


def at(timestamp, *ids, **fields):
    return {**MOONCAKE, "timestamp": timestamp, "hash_ids": list(ids), **fields}


# Ids.


def test_ids_with_a_sign_and_ids_that_a_table_made_floats(save):
    low, high = -(2**63), 2**64 - 5
    rows = [at(0, -5, low), at(9, -5, low + 1), at(18, 5, low), at(27, high, 1), at(36, -5.0, low)]
    # -5 is neither 5 nor what 64 bits without a sign make of it; -5.0 is -5.
    assert shared(save(*rows)) == [0, 512, 0, 0, 1024]
    assert shared(save(at(0, 1.0, 2.0), at(9, 1, 3))) == [0, 512]


def test_floats_that_may_have_lost_digits_are_no_ids(save):
    for lost in (2.0**53, 1.8446744073709552e19):
        message = refused(save(at(0, 1, 2), at(9, lost, 2)))
        assert ":2: hash_ids holds" in message
        assert "different ids may have become one" in message


def test_minus_one_is_no_id(save):
    assert ":1: hash_ids holds -1, which is no id" in refused(save(at(0, 3, -1)))
    for bad in (-1, -100):
        row = {**TOKENS, "token_ids": [1, bad]}
        assert f"token_ids holds {bad}, which is no id" in refused(save(row))


def test_chats_that_a_table_made_floats(save):
    later = {**BAILIAN, "chat_id": 2.0, "parent_chat_id": 1.0, "timestamp": 9}
    workload = read(save(BAILIAN, later))
    assert [request.session_id for request in workload.requests] == ["1", "1"]
    assert "session_id is 1.5" in refused(save({**MOONCAKE, "session_id": 1.5}))


@pytest.mark.parametrize("row", [MOONCAKE, TOKENS, {"prompt": "hi", "max_tokens": 2}])
def test_an_empty_name_is_none(save, row):
    nameless = {**row, "session_id": "", "request_id": ""}
    workload = read(save(nameless, nameless), timed=False)
    assert [request.session_id for request in workload.requests] == [None, None]
    assert [request.request_id for request in workload.requests] == ["0", "1"]


def test_requests_of_no_session_are_no_turns(save):
    # As turns of one session they would be taken to hold only what is new.
    rows = [at(0, 1, 2, session_id=""), at(9, 3, 4, session_id=""), at(18, 5, 6, session_id="")]
    workload = read(save(*rows))
    assert [request.num_prompt_tokens for request in workload.requests] == [1024] * 3
    assert workload.warnings == ()


# Texts.


def test_conversations_without_ids_may_share_a_line(save):
    said = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]
    path = save(json.dumps([{"conversations": said}] * 3), "\n")
    assert check_trace(path).problems == ()
    names = [request.session_id for request in read(path, timed=False).requests]
    assert names == ["line 1", "line 1, 2", "line 1, 3"]
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    path = save(json.dumps([{"messages": chat}] * 2))
    assert len(read(path, timed=False).requests) == 2


def test_messages_that_say_nothing_are_not_taken_for_equal_ones(save):
    said = [{"from": "human", "text": "hi"}, {"from": "gpt", "text": "yo"}]
    message = refused(save(json.dumps([{"id": "a", "conversations": said}])))
    assert "a message of 'human' has no content (or value)" in message
    assert "messages is empty" in refused(save({"messages": []}))
    assert "the conversation is empty" in refused(save(json.dumps([{"conversations": []}])))
    called = {"role": "assistant", "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "content": None}
    assert len(read(save({"messages": [called, result]}), timed=False).requests) == 1


def test_a_conversation_that_is_there_twice_is_named_by_its_turn(save):
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    rows = [{"session_id": "s", "messages": said * count} for count in (1, 2)]
    message = refused(save(*rows))
    assert ":2: the turn (conversation/number) 's/0' is already that of line 1" in message


def test_fields_as_load_generators_write_them(save):
    wrapped = {"timestamp": 5, "request": {"prompt": "hi", "max_tokens": 3}}
    (request,) = read(save(wrapped)).requests
    assert (request.num_prompt_tokens, request.num_output_tokens) == (2, 3)
    (request,) = read(save({"prompt": "hi", "output_tokens": 7}), timed=False).requests
    assert request.num_output_tokens == 7


def bytes_of(*pieces):
    return sum(map(len, pieces))


@pytest.mark.parametrize("name", ["system", "instructions"])
def test_a_system_prompt_beside_the_messages(save, name):
    user = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    inside = {"messages": [{"role": "system", "content": "be kind"}, *user["messages"]]}
    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]
    rows = [{**user, name: "be kind"}, inside, {**user, name: parts}, user]
    whole = bytes_of("<|im_start|>system\nbe kind<|im_end|>\n")
    whole += bytes_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert shared(save(*rows), timed=False) == [0, whole, whole, bytes_of("<|im_start|>")]
    rows = [{"model": "m", name: "be kind", "input": "hi"}, {**inside, "model": "m"}]
    assert shared(save(*rows), timed=False) == [0, whole]
    said = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]
    (request,) = read(save({"id": "a", "conversations": said, name: "be kind"})).requests
    assert request.num_prompt_tokens == whole


# Files.


@pytest.mark.parametrize(
    "row",
    [{"message": "Not Found"}, {"requests": [MOONCAKE]}, {"data": [MOONCAKE]}, {},
     {"Timestamp": 0, "Input_Length": 5}],
)  # fmt: skip
def test_rows_of_no_known_format_are_named_by_what_they_have(save, row):
    fields = ", ".join(map(repr, row)) or "no field"
    message = refused(save(row, row))
    assert f":1: a row with {fields} is in no known format" in message
    assert "--lenient" not in message


def test_the_first_row_need_not_tell_the_format(save):
    for row in (MOONCAKE, BAILIAN, TOKENS):
        path = save({"version": 1}, row)
        assert len(check_trace(path).problems) == 1
        assert len(read(path, mode="lenient").requests) == 1
        assert read(path, mode="lenient").identity_block_size == read(save(row)).identity_block_size


def test_zeros_spoil_a_line_not_the_file(save):
    path = save(MOONCAKE, b"\0\0\0\n", {**MOONCAKE, "timestamp": 9}, b"\0" * 9)
    first, second = check_trace(path).problems
    assert f"{path}:2: '\\x00\\x00\\x00' is not a JSON object" in first
    assert f"{path}:4: " in second
    workload = read(path, mode="lenient")
    assert (len(workload.requests), workload.num_skipped) == (2, 2)


@pytest.mark.parametrize(
    ("encoding", "spelt"),
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"),
     ("utf-32", "UTF-32")],
)  # fmt: skip
def test_text_of_other_widths_is_called_by_its_name(save, encoding, spelt):
    message = refused(save(json.dumps(MOONCAKE).encode(encoding)))
    assert f" is {spelt} text; convert it to UTF-8 (iconv -f {spelt} -t UTF-8)." in message


def test_what_follows_a_row_in_its_line_is_quoted(save):
    row = json.dumps(MOONCAKE)
    for what in (row, ",", " // first"):
        message = refused(save(f"  {row}{what}\n", MOONCAKE))
        assert ":1: " in message
        assert f"{what.strip()[:20]}" in message
        assert "follows the JSON object in its line; give one JSON object per line" in message
    assert "(Invalid control character at character 10)" in refused(save('  {"t": "\1"}\n', row))


def test_a_last_line_that_is_cut_inside_a_character_is_cut_off(save):
    cut = '{"timestamp": 0, "user": "é'.encode()[:-1]
    path = save(MOONCAKE, cut)
    assert f"{path}:2: the last line is cut off" in refused(path)
    assert f"{path}:2: the line is not UTF-8 text" in refused(save(MOONCAKE, cut + b"\n"))


def test_a_comma_before_the_end_of_an_array(save):
    path = save(f"[{json.dumps(MOONCAKE)},\n{json.dumps(MOONCAKE)},\n]\n")
    assert f"{path}:3: a comma stands before the end of the JSON array; remove it" in refused(path)
    assert len(read(path, mode="lenient").requests) == 2


def test_the_earliest_time_stamp_is_spelt_in_full(save):
    path = save(at(1_700_000_000_123_456, 1, 2), at(1_700_000_000_623_456, 1, 2))
    said = " ".join(read(path).warnings)
    assert "the earliest timestamp is 1700000000123456, which was taken as 0" in said


# Sessions.


def test_a_turn_under_another_adapter_has_the_history_anew(save):
    def turn(timestamp, *ids, session="s", **fields):
        return at(timestamp, *ids, session_id=session, output_length=0, **fields)

    rows = [turn(0, 1, 2), turn(9, 3, 4, lora_id=7), turn(18, 5, 6, lora_id=7),
            turn(27, 1, 2, session="t"), turn(36, 3, 4, session="t")]  # fmt: skip
    workload = read(save(*rows), turns="delta")
    lengths = [request.num_prompt_tokens for request in workload.requests]
    assert lengths == [1024, 2048, 3072, 1024, 2048]
    # Only the turn that stays with the adapter, and what repeats without one, find something.
    expected = [0, 0, 2048, 1024, 1024]
    assert shared_prefix_tokens(workload.requests).tolist() == expected
    tokens = [
        {"timestamp": row["timestamp"], "token_ids": row["hash_ids"], "output_length": 0}
        | {key: row[key] for key in ("session_id", "lora_id") if key in row}
        for row in rows
    ]
    assert shared(save(*tokens), turns="delta") == [0, 0, 4, 2, 2]


def with_answers(path, block_size=1, **options):
    return describe(read(path, **options), block_size)["infinite_hit_rate_with_outputs"]


def test_turns_under_other_keys_do_not_show_each_other(save):
    # The first turn is shorter than a block, so that its ids cannot say that it is no beginning.
    first = {**at(0, 1, session_id="s", turns="cumulative"), "input_length": 100}
    second = {**at(9, 2, 3, session_id="s", turns="cumulative"), "input_length": 1000}
    assert with_answers(save(first, second)) == pytest.approx(104 / 1100)
    assert with_answers(save({**first, "cache_salt": "a"}, {**second, "cache_salt": "b"})) == 0


@pytest.mark.parametrize("row", [MOONCAKE, TOKENS, {"prompt": "hi", "max_tokens": 2}])
def test_delays_are_milliseconds_beside_time_stamps_that_are_none(save, row):
    first = {**row, "timestamp": 1_700_000_000, "session_id": "s"}
    path = save(first, {**first, "timestamp": 1_700_000_010, "delay": 2})
    workload = read(path)
    assert [request.think_ns for request in workload.requests] == [None, 2_000_000]
    words = "delays before turns were read as milliseconds, timestamps as seconds"
    assert words in " ".join(workload.warnings)
    for path in (save(first, first), save({**first, "timestamp": 0, "delay": 2})):
        assert words not in " ".join(read(path).warnings)


def test_nothing_is_assumed_of_turns_that_cannot_tell(save):
    short = [{**at(9 * i, i, session_id="s"), "input_length": 100 * (i + 1)} for i in range(3)]
    path = save(*short)
    assert [request.num_prompt_tokens for request in read(path).requests] == [100, 200, 300]
    assert with_answers(path) == 0
    assert with_answers(path, turns="cumulative") == pytest.approx((104 + 204) / 600)
    # Other rows of the trace tell of these, and Bailian's name what they begin with.
    whole = [at(0, 7, 8, session_id="t"), {**at(90, 7, 8, 9, session_id="t"), "input_length": 1536}]
    assert with_answers(save(*short, *whole)) == pytest.approx((104 + 204 + 1028) / 3160)
    turn = {**BAILIAN, "input_length": 10, "hash_ids": [7]}
    later = {**BAILIAN, "chat_id": 2, "parent_chat_id": 1, "timestamp": 9, "hash_ids": [4, 5, 6]}
    assert with_answers(save(turn, later)) == pytest.approx(13 / 50)


@pytest.mark.parametrize("form", ["mooncake", "bailian"])
def test_answers_that_the_next_turn_does_not_show_are_not_written_as_shown(save, tmp_path, form):
    # As where the thoughts of a model are cut from the history.
    first = {"timestamp": 0, "token_ids": [1, 2, 3, 4], "output_token_ids": [7, 7, 8]}
    first["session_id"] = "s"
    prompts = {
        "separate": [1, 2, 3, 4, 8, 5, 6, 9],
        "cumulative": [1, 2, 3, 4, 7, 7, 8, 6, 9],
    }
    for said, prompt in prompts.items():
        second = {**first, "timestamp": 9, "token_ids": prompt}
        original, path = save(first, second), tmp_path / "written"
        assert write_trace(read(original), path, form, trace_block_size=1) == ()
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert rows[1]["turns"] == said
        options = {"trace_block_size": 1}
        assert with_answers(path, **options) == with_answers(original)
    # What the first turn has no ids for is not made up either.
    nameless = {**at(0, session_id="s", hash_ids=None), "input_length": 3}
    later = {**at(9, 1, 2, session_id="s")}
    write_trace(read(save(nameless, later)), path, form, trace_block_size=512)
    assert with_answers(path, trace_block_size=512) == 0


# Where and what next.


def test_a_broken_object_is_told_from_one_that_is_cut_off(save):
    whole = json.dumps(MOONCAKE, indent=2) + "\n"
    broken = '{\n  "timestamp": 4,\n  "input_length": ,\n  "output_length": 2\n}\n'
    first = whole.count("\n") + 1
    path = save(whole, broken, whole)
    message = refused(path)
    assert f"{path}:{first}: the JSON object is broken in line {first + 2} (Expecting" in message
    assert "correct the line" in message
    path = save(whole, whole[:-9])
    assert f"{path}:{first}: the JSON object is cut off here" in refused(path)
    path = save(whole, whole[: whole.index("_length") + 3])
    assert f"{path}:{first}: the JSON object is cut off here" in refused(path)


def test_what_can_be_done_is_one_thing_or_another(save):
    path = save(at(0, 1, 2, 3), {**MOONCAKE, "timestamp": None})
    first, second = check_trace(path).problems
    assert first.endswith(
        "; give the trace's own size with --trace-block-size or correct the line."
    )
    assert second.endswith("; add it or make arrivals with --arrival poisson and --rate.")
    assert "--trace-block-size, correct the line, or read what can be read" in refused(path)
