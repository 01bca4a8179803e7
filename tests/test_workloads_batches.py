"""Many rows at a time, columns and compiled code: as the plain code has it, row by row."""

import gzip
import json
import subprocess
import sys
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workloads.batches as batches_module
from sim.errors import UsageError
from sim.mapped import Column
from workloads import check_trace, describe, load, segment_rows, shared_prefix_tokens, structure
from workloads.batches import columns
from workloads.mooncake import MooncakeReader
from workloads.requests import Requests
from workloads.texts import TextNumbers
from workloads.token_ids import TokenIdReader
from workloads.tree import Names, PrefixTree, num_repeated

BIG = 2**63
odd_numbers = st.sampled_from(
    ["-1", "0", "1.5", "2.0", "1e3", "-0", "NaN", "1e400", "true", "null", '"7"', "[]", "{}"]
    + [str(n) for n in (2**31 - 1, 2**31, 2**53 + 1, BIG - 1, BIG, 2 * BIG, 10**30)]
)
plain_rows = st.builds(
    lambda stamp, ids, output, cut: (
        f'{{"timestamp": {stamp}, "input_length": {max(4 * len(ids) - cut, 1)},'
        f' "output_length": {output}, "hash_ids": {json.dumps(ids)}}}'
    ),
    st.one_of(st.integers(0, 10**6), st.floats(0, 10**6)),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 3),
)
turns = st.builds(
    lambda row, session: f'{row[:-1]}, "session_id": {session}}}', plain_rows, st.integers(0, 2)
)
odd_rows = st.one_of(
    st.builds(
        lambda field, value, extra: (
            '{"timestamp": 5, "input_length": 4, "output_length": 1, "hash_ids": [1]'
            f', "{field}": {value}{extra}}}'
        ),
        st.sampled_from(
            ["timestamp", "input_length", "output_length", "hash_ids", "lora_id", "type",
             "created_time", "request_id", "session_id", "delay", "x"]
        ),
        odd_numbers,
        st.sampled_from(["", ', "turn": 1', ', "cache_salt": "a"']),
    ),
    st.builds(
        lambda value: (
            f'{{"timestamp": 5, "input_length": 8, "output_length": 1, "hash_ids": [1, {value}]}}'
        ),
        odd_numbers,
    ),
    st.sampled_from(
        ["", " ", "{", "[1]", "7", '{"a": 1}, {"b": 2}', '{"timestamp": 1}', "<html>",
         '{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1]}',
         '{"timestamp": 1, "input_length": 4, "output_length": 1, "hash_ids": ["\\ud800"]}']
    ),
)  # fmt: skip
row_lists = st.lists(st.one_of(plain_rows, plain_rows, odd_rows), min_size=1, max_size=30)


def told(workload):
    """Everything that a reader makes of a trace."""
    return (
        [
            (
                r.request_id,
                r.arrival_ns,
                r.num_prompt_tokens,
                r.num_output_tokens,
                r.session_id,
                r.think_ns,
                *r.content.path(),
            )
            for r in workload.requests
        ],
        workload.warnings,
        workload.notes,
        workload.num_skipped,
        workload.digest,
    )


def read_all(path, name="mooncake", **options):
    """Read a trace in every mode; errors are told too."""
    if name != "tokens":
        options["trace_block_size"] = 4
    found = []
    for lenient in (False, True):
        try:
            found.append(told(load(path, format_name=name, lenient=lenient, **options)))
        except UsageError as error:
            found.append(str(error))
    options.pop("num_requests")
    checked = check_trace(path, name, **options)
    found.append(checked.problems)
    found.append(checked.workload and told(checked.workload))
    return found


def batches_are_rows(path, name, size, **options):
    """Read in batches of a size, with tables of names compiled and not, and row by row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "NUM_LINES", size)
        in_batches = read_all(path, name, **options)
        patch.setattr("workloads.intake.TextNumbers", partial(TextNumbers, compile_from=3))
        patch.setattr(batches_module, "_NUM_BYTES", 200)
        assert read_all(path, name, **options) == in_batches
        patch.setattr(MooncakeReader, "has_plain_rows", False)
        patch.setattr(TokenIdReader, "has_plain_rows", False)
        assert read_all(path, name, **options) == in_batches


@settings(max_examples=150, deadline=None)
@given(rows=row_lists, size=st.integers(1, 9), wanted=st.one_of(st.none(), st.integers(1, 20)))
def test_batches_read_what_single_rows_read(rows, size, wanted, tmp_path_factory):
    path = tmp_path_factory.mktemp("batches") / "trace.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    batches_are_rows(path, "mooncake", size, num_requests=wanted)


# Mostly rows that can be used: ids that differ by their line, and now and then one that does not.
some_names = st.sampled_from(["1", '"1"', '"a"', '"\u00e4"', "null", '""', "-1", '"-1"', "2"])
named_fields = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            "request_id": st.one_of(st.just("LINE"), st.just("LINE"), st.just("LINE"), some_names),
            "session_id": some_names,
            "delay": st.sampled_from(["0", "1.5", "7", "null", "-1", "1e300", '"3"', "true"]),
            "turns": st.sampled_from(['"cumulative"', '"delta"', "null", "[1]", "7"]),
            "type": st.just('"text"'),
            "lora_id": st.sampled_from(["0", "1"]),
        },
    ),
)
chats = st.fixed_dictionaries(
    {"chat_id": st.sampled_from([*["LINE"] * 9, "3", '"x"', "null", "[]", "1.0"])},
    optional={
        "parent_chat_id": st.sampled_from(
            ["0", "1", "2", '"3"', "4", "-1", '"-1"', "null", '""', "99", "LINE", "-1.0", "true"]
        ),
        "request_id": st.sampled_from(["null", '"q"', "5"]),
        "delay": st.sampled_from(["1", "0.25", "null"]),
        "turns": st.sampled_from(['"cumulative"', '"delta"']),
        "turn": st.just("1"),
    },
)
token_lists = st.lists(st.integers(0, 2), max_size=5).map(json.dumps)
odd_lists = st.sampled_from(["[]", "[1.0]", '["a"]', "[true]", "null", "[-1]", f"[{BIG}]", "7"])
token_fields = st.fixed_dictionaries(
    {"token_ids": st.one_of(*[token_lists] * 5, odd_lists)},
    optional={
        "output_token_ids": st.one_of(*[token_lists] * 5, odd_lists),
        "output_length": st.sampled_from(["0", "1", "2", "3", "1.5"]),
        "input_length": st.sampled_from(["1", "2", "3"]),
        "arrival_time_ns": st.sampled_from(["5", "1700000000000000123", "1.5", "-1"]),
        "timestamp": st.sampled_from(["3", "2.5"]),
        "prompt_token_ids": token_lists,
    },
)
plain_tokens = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 9).map(str),
        "token_ids": token_lists,
        "output_length": st.just("2"),
    }
)
spelt_tokens = st.fixed_dictionaries(
    {
        "arrival_time_ns": st.integers(0, 9).map(str),
        "input_tok_ids": token_lists.filter(lambda ids: ids != "[]"),
        "output_tok_ids": token_lists,
    }
)


def spell(fields, line):
    inside = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    return "{" + inside.replace("LINE", str(line)) + "}"


def blocks_with(others):
    return st.builds(lambda row, fields: {**row, **fields}, plain_rows.map(fields_of), others)


def fields_of(row):
    return {name: json.dumps(value) for name, value in json.loads(row).items()}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("mooncake", [blocks_with(named_fields)]),
        ("bailian", [blocks_with(chats)]),
        (
            "tokens",
            [
                st.builds(lambda row, names: {**row, **names}, rows, named_fields)
                for rows in (token_fields, plain_tokens, spelt_tokens)
            ],
        ),
    ],
)
def test_batches_of_named_rows_read_what_single_rows_read(name, kinds, tmp_path_factory):
    @settings(max_examples=120, deadline=None)
    @given(
        rows=st.one_of(
            *(st.lists(rows, min_size=1, max_size=14) for rows in kinds),
            st.lists(st.one_of(*kinds), min_size=1, max_size=14),
        ),
        size=st.integers(1, 9),
        wanted=st.one_of(st.none(), st.none(), st.integers(1, 12)),
    )
    def check(rows, size, wanted):
        path = tmp_path_factory.mktemp("named") / "trace.jsonl"
        path.write_text("\n".join(map(spell, rows, range(len(rows)))), encoding="utf-8")
        batches_are_rows(path, name, size, num_requests=wanted)

    check()


def test_plain_rows_become_columns():
    found = columns(
        [
            b'{"timestamp": 1.5, "input_length": 5, "output_length": 0, "hash_ids": [7, 9]}',
            b'{"timestamp": 3, "input_length": 4, "output_length": 2, "hash_ids": [7], "turn": 1}',
        ],
        unit=4,
        unit_ns=10**6,
    )
    assert found.arrival_ns.tolist() == [1_500_000, 3_000_000]
    assert found.num_prompt_tokens.tolist() == [5, 4]
    assert found.num_output_tokens.tolist() == [0, 2]
    assert found.num_ids.tolist() == [2, 1]
    assert found.ids.tolist() == [7, 9, 7]
    assert found.has_fractions


@pytest.mark.parametrize("stamp", ["0.1", "1e-9", "123456.789", "1698765432123.25", "27482"])
@pytest.mark.parametrize("unit_ns", [1, 10**3, 10**6])
def test_time_stamps_are_rounded_as_single_ones_are(stamp, unit_ns):
    from workloads.fields import time_ns  # noqa: PLC0415

    row = f'{{"timestamp": {stamp}, "input_length": 1, "output_length": 1, "hash_ids": [1]}}'
    found = columns([row.encode()], unit=512, unit_ns=unit_ns)
    assert found.arrival_ns[0] == time_ns("timestamp", json.loads(stamp), unit_ns)


streams = st.lists(
    st.tuples(
        st.lists(st.sampled_from([0, 0, 1, 2, -(2**63)]), min_size=1, max_size=9),
        st.integers(0, 3),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(all_streams=st.lists(streams, min_size=1, max_size=6), compile_from=st.integers(1, 20))
def test_compiled_tree_is_the_plain_one(all_streams, compile_from):
    told_by = []
    for number in (10**9, compile_from):
        names = Names()
        tree = PrefixTree(names, 4, compile_from=number)
        root = tree.root()
        found = []
        for some in all_streams:
            ids = np.array([one for ids, _, _ in some for one in ids], dtype=np.int64)
            paths = tree.insert_many(
                ids,
                np.array([len(ids) for ids, _, _ in some]),
                root,
                num_prompt_tokens=np.array([4 * len(ids) - cut for ids, cut, _ in some]),
                num_output_tokens=np.array([output for _, _, output in some]),
            )
            found.append((paths.counts.tolist(), paths.bases.tolist(), paths.ends.tolist()))
            found.append(tree.insert(ids, root))
            found.append((names.next, tree.num_ids_after_several_prefixes()))
        told_by.append(found)
    assert told_by[0] == told_by[1]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.one_of(plain_rows, turns), min_size=1, max_size=30),
    at_once=st.sampled_from([2, 7, 1000]),
)
def test_columns_share_what_requests_share(rows, at_once, tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "trace.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    requests = load(path, format_name="mooncake", trace_block_size=4, turns="cumulative").requests
    assert isinstance(requests, Requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_rows, "AT_ONCE", at_once)
        patch.setattr(structure, "_WORTH_COMPILED_CODE", 0)
        for outputs in (False, True):
            found = shared_prefix_tokens(requests, outputs=outputs)
            plainly = shared_prefix_tokens(tuple(requests), outputs=outputs)
            assert found.tolist() == plainly.tolist()
        assert structure_of(requests) == structure_of(tuple(requests))


def structure_of(requests):
    """What `describe` asks of the tree, in an order that both ways have."""
    found, shape = structure.sharing(requests), structure.tree_shape(requests)
    return (
        [getattr(found, field.name).tolist() for field in fields(found)],
        sorted(shape.fan_out.tolist()),
        shape.depth.tolist(),
        [structure.popularity(requests, length).tolist() for length in (1, 4, 7)],
    )


def test_a_column_that_grows_large_lies_in_a_file_and_says_the_same():
    small, large = Column(), Column(large=1 << 14)
    for column in (small, large):
        column.extend(np.arange(3000, dtype=np.int64))
        column.extend([7, 8])
        column.append(-5)
        column[0] = 42
    assert small.array.tolist() == large.array.tolist()
    assert (len(large), large[0], large[-1], large[3001]) == (3003, 42, -5, 8)
    before = large.array
    large.reserve(100_000)[3003] = 6
    large.fill_to(3004)
    assert large.array.tolist() == [*small.array.tolist(), 6]
    assert before.tolist() == small.array.tolist()


def test_a_folder_without_room_is_named(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sim.mapped._allocate", full)
    with pytest.raises(UsageError, match=r"No space left on device.*TMPDIR"):
        Column(large=1).reserve(5000)


@pytest.mark.parametrize("at_once", [3, 10**6])
def test_repeated_numbers_are_counted_in_parts_too(at_once, monkeypatch):
    monkeypatch.setattr("sim.mapped.AT_ONCE", at_once)
    ids = np.array([5, -1, 5, 2**62, 7, -1, 5, 2**62 + 1, 9], dtype=np.int64)
    assert num_repeated(ids) == 2
    assert num_repeated(ids[:0]) == 0


def test_requests_are_a_sequence(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 9, "input_length": 4, "output_length": 1, "hash_ids": [1]}\n'
        '{"timestamp": 2, "input_length": 3, "output_length": 0, "hash_ids": [2],'
        ' "session_id": "s"}\n'
        '{"timestamp": 4, "input_length": 3, "output_length": 2, "hash_ids": [1],'
        ' "session_id": "s", "delay": 3}\n'
    )
    requests = load(path, trace_block_size=4).requests
    assert [r.request_id for r in requests] == ["1", "2", "0"]
    assert [r.arrival_ns for r in requests] == [0, 2_000_000, 7_000_000]
    assert [r.session_id for r in requests] == ["s", "s", None]
    assert [r.think_ns for r in requests] == [None, 3_000_000, None]
    assert requests[-1].request_id == "0"
    assert [r.request_id for r in requests[1:]] == ["2", "0"]
    assert [r.num_prompt_tokens for r in requests[::-1]] == [4, 3, 3]
    assert [r.num_kv_tokens for r in requests] == requests.num_kv_tokens.tolist()
    with pytest.raises(IndexError):
        requests[3]


@pytest.mark.parametrize("compile_from", [1, 10**9])
def test_a_trace_in_files_reads_the_same(compile_from, tmp_path, monkeypatch):
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": n, "input_length": 12, "output_length": n % 3, "hash_ids": [n % 7, n % 50, n]}
        for n in range(3000)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    in_memory = load(path, trace_block_size=4)
    monkeypatch.setattr("sim.mapped.LARGE", 1)
    monkeypatch.setattr(
        "workloads.mooncake.PrefixTree", partial(PrefixTree, compile_from=compile_from)
    )
    in_files = load(path, trace_block_size=4)
    assert told(in_files) == told(in_memory)
    assert describe(in_files, 4) == describe(in_memory, 4)


_EXTEND = """
import resource
import numpy as np
from sim.mapped import Column
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
limit = used + (48 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
column = Column({large})
for _ in range(96):
    column.extend(np.ones(1 << 17, dtype=np.int64))
print(sum(int(column.array[first : first + 1000].sum()) for first in range(0, len(column), 1000)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are told otherwise")
@pytest.mark.parametrize(("large", "fits"), [(1 << 20, True), (1 << 40, False)])
def test_a_large_column_takes_no_memory_of_its_own(large, fits):
    """96 MiB of numbers where 48 MiB of memory are left."""
    done = subprocess.run(
        [sys.executable, "-c", _EXTEND.format(large=large)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == fits, done.stderr
    assert done.stdout.strip() == (str(96 << 17) if fits else "")
    assert fits or "MemoryError" in done.stderr


@pytest.mark.parametrize("packing", [bytes, gzip.compress])
def test_reading_stops_where_enough_was_read(packing, tmp_path):
    """What follows the last row that is wanted is broken, and is not even looked at."""
    rng = np.random.default_rng(1)
    rows = "".join(
        f'{{"timestamp": 1, "input_length": 4, "output_length": 1, "hash_ids": [{name}]}}\n'
        for name in rng.integers(0, 2**62, 20_000).tolist()
    )
    path = tmp_path / "trace"
    path.write_bytes(packing(rows.encode())[:-20_000] + b"broken")
    workload = load(path, trace_block_size=4, num_requests=600)
    assert len(workload.requests) == 600
    with pytest.raises(UsageError):
        load(path, trace_block_size=4)
