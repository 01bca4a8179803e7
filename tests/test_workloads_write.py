import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sim.errors import UsageError
from sim.types import Request
from workloads import Workload, infinite_hit_rate, read_mooncake, write_mooncake
from workloads.content import Interner, TokenIds
from workloads.multi_turn import multi_turn
from workloads.requests import as_requests
from workloads.shared_prefix import shared_prefix
from workloads.texts import KeyNumbers
from workloads.write import write_trace

ROWS = [
    {"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [5, 6]},
    {"timestamp": 0.25, "input_length": 1536, "output_length": 0, "hash_ids": [5, 6, 9]},
    {"timestamp": 3, "input_length": 1100, "output_length": 9, "hash_ids": [5, 6, 9]},
    {"timestamp": 3, "input_length": 700, "output_length": 1},
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "in.jsonl"
    rows = [*ROWS, {**ROWS[0], "timestamp": 5, "request_id": "z", "session_id": "s", "delay": 1.5}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_mooncake(path)


def facts(workload):
    return [replace(request, content=None) for request in workload.requests]


@pytest.mark.parametrize("trace_block_size", [512, 128, 16])
def test_round_trip_loses_nothing_at_or_below_the_identity(trace, tmp_path, trace_block_size):
    path = tmp_path / "out.jsonl"
    assert write_mooncake(trace, path, trace_block_size=trace_block_size) == ()
    again = read_mooncake(path, trace_block_size=trace_block_size)
    assert facts(again) == facts(trace)
    for block_size in (1, 16, 48, 128, 512, 1024):
        assert infinite_hit_rate(again.requests, block_size) == infinite_hit_rate(
            trace.requests, block_size
        )
    assert [entry.name for entry in tmp_path.iterdir() if ".part" in entry.name] == []


def test_a_finer_identity_is_floored_to_trace_blocks(tmp_path):
    workload = shared_prefix(num_requests=40, prompt=1000, num_prefixes=3)
    path = tmp_path / "out.jsonl"
    (loss,) = write_mooncake(workload, path, trace_block_size=64)
    assert "end inside a block of 64 tokens are cut to whole blocks" in loss
    again = read_mooncake(path, trace_block_size=64)
    assert facts(again) == facts(workload)
    for block_size in (64, 128, 192):
        assert infinite_hit_rate(again.requests, block_size) == infinite_hit_rate(
            workload.requests, block_size
        )
    for block_size in (1, 16):
        assert infinite_hit_rate(again.requests, block_size) < infinite_hit_rate(
            workload.requests, block_size
        )
    assert write_mooncake(workload, path, trace_block_size=1) == ()
    exact = read_mooncake(path, trace_block_size=1)
    assert infinite_hit_rate(exact.requests, 7) == infinite_hit_rate(workload.requests, 7)


def test_hits_on_outputs_are_lost_and_it_says_so(tmp_path):
    interner = Interner()
    tokens = np.arange(20, dtype=np.int64)
    requests = (
        Request("0", 0, TokenIds(tokens[:12], interner), 6, 6),
        Request("1", 1, TokenIds(tokens, interner), 18, 2),
    )
    (loss,) = write_mooncake(Workload("w", requests), tmp_path / "out", trace_block_size=1)
    assert "has no ids for answers" in loss


def test_without_prefix_information_no_ids_are_written(trace, tmp_path):
    path = tmp_path / "out.jsonl"
    assert write_mooncake(replace(trace, has_prefix_info=False), path) == ()
    assert "hash_ids" not in path.read_text()


def test_what_cannot_be_written(trace, tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        write_mooncake(trace, tmp_path / "none" / "out.jsonl")
    with pytest.raises(UsageError, match="--ids-block-size is 0"):
        write_mooncake(trace, tmp_path / "out.jsonl", trace_block_size=0)
    with pytest.raises(UsageError, match="cannot be written"):
        write_mooncake(trace, "")
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write_mooncake(trace, target)
    assert [entry.name for entry in tmp_path.iterdir() if ".part" in entry.name] == []


def ids_of(path):
    rows = map(json.loads, path.read_text().splitlines())
    return [name for row in rows for name in [row["request_id"], *row.get("hash_ids", [])]]


def test_anonymised_files_of_one_key_share_nothing_by_it(trace, tmp_path):
    other = replace(trace, requests=trace.requests[:3])
    written = []
    for name, workload in (("one", trace), ("again", trace), ("other", other)):
        write_trace(workload, tmp_path / name, key="secret")
        written.append((tmp_path / name).read_text())
    assert written[0] == written[1]
    renamed = replace(trace, digest="of another trace of the same shape")
    write_trace(renamed, tmp_path / "renamed", key="secret")
    assert not set(ids_of(tmp_path / "renamed")) & set(ids_of(tmp_path / "one"))
    joined = tmp_path / "joined.jsonl"
    joined.write_text(written[0] + written[2])
    requests = read_mooncake(joined).requests  # no request id is there twice
    rates = [infinite_hit_rate(each.requests, 1) for each in (trace, other)]
    tokens = [sum(r.num_prompt_tokens for r in each.requests) for each in (trace, other)]
    hits = sum(rate * count for rate, count in zip(rates, tokens, strict=True))
    assert infinite_hit_rate(requests, 1) == pytest.approx(hits / sum(tokens))


@pytest.mark.parametrize("form", ["mooncake", "bailian", "tokens"])
@pytest.mark.parametrize("key", [None, "secret"])
def test_columns_are_written_as_single_requests_are(form, key, tmp_path, monkeypatch):
    """Many requests at once, in parts of any size, compiled or not: the same bytes."""
    made = multi_turn(num_requests=40, system=41, prompt=9, output=7, num_prefixes=3)
    workload = replace(made, requests=as_requests(made.requests))
    size = None if form == "tokens" else 4
    write_trace(
        replace(made, requests=tuple(workload.requests)),
        tmp_path / "plain",
        form,
        key=key,
        trace_block_size=size,
    )
    for compile_from, at_once, ids_at_once in ((10**9, 3, 10**6), (5, 7, 50), (0, 1000, 1)):
        monkeypatch.setattr(
            "workloads.write.KeyNumbers", partial(KeyNumbers, compile_from=compile_from)
        )
        monkeypatch.setattr("workloads.written_ids._REQUESTS_AT_ONCE", at_once)
        monkeypatch.setattr("workloads.written_ids._IDS_AT_ONCE", ids_at_once)
        write_trace(workload, tmp_path / "columns", form, key=key, trace_block_size=size)
        assert (tmp_path / "columns").read_bytes() == (tmp_path / "plain").read_bytes()
