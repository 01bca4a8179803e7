"""The public traces in ../shared/traces give the figures that stand beside them."""

import pytest
from helpers import SHARED, needs

from workloads import describe, read, shared_prefix_tokens

TRACES = SHARED / "traces"
pytestmark = needs(TRACES)


def test_the_coding_agent_sessions():
    workload = read(TRACES / "weka_710.tar.zst")
    assert workload.identity_block_size == 64
    figures = describe(workload, 64)
    assert figures["num_requests"] == 49_334
    assert figures["num_sessions"] == 710 + 63, "subagents are sessions of their own"
    assert figures["num_prompt_blocks"] == 94_310_647
    assert figures["num_distinct_prompt_blocks"] == 3_450_959
    assert figures["prompt_tokens_total"] == 6_037_445_403
    assert figures["infinite_hit_rate"] == pytest.approx(0.9632, abs=5e-5)
    for name, expected in {"p50": 103_662, "p90": 233_633, "p99": 498_617}.items():
        assert figures[f"prompt_tokens_{name}"] == pytest.approx(expected, rel=3e-4)
    assert any("all start at 0" in warning for warning in workload.warnings)


@pytest.mark.parametrize(("name", "num_rows"), [("code", 8_819), ("conv", 19_366)])
def test_lengths_of_azure(name, num_rows):
    workload = read(TRACES / f"AzureLLMInferenceTrace_{name}.csv")
    assert workload.warnings == ()
    figures = describe(workload, 16)
    assert figures["num_requests"] == num_rows
    assert figures["infinite_hit_rate"] is None
    assert figures["working_set_tokens"] is None


def test_token_ids_of_sharegpt():
    workload = read(TRACES / "sharegpt-llama-3.1-8b-300-sps10.jsonl")
    assert len(workload.requests) == 300
    assert workload.identity_block_size == 1
    first = min(workload.requests, key=lambda r: int(r.request_id))
    assert (first.num_prompt_tokens, first.num_output_tokens) == (2358, 531)
    # The very tokens, by a plain comparison of the first hundred rows.
    import json  # noqa: PLC0415

    with (TRACES / "sharegpt-llama-3.1-8b-300-sps10.jsonl").open() as file:
        rows = [json.loads(line) for line in file][:100]
    requests = sorted(workload.requests, key=lambda r: int(r.request_id))[:100]
    prompts = [row["input_tok_ids"] for row in rows]
    shared = shared_prefix_tokens(requests).tolist()
    for index in range(100):
        assert shared[index] == max((common(prompts[index], p) for p in prompts[:index]), default=0)


def common(one, other):
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def test_agent_texts_of_lmcache():
    workload = read(TRACES / "lmcache_agent_traces.tar.gz")
    assert len(workload.requests) == 1619 - 53
    assert workload.num_skipped == 53
    assert len({request.session_id for request in workload.requests}) == 25 + 20 + 24
    said = " ".join(workload.warnings)
    assert "53 rows without any input, passed over" in said
    assert "counted in bytes" in said
    assert "is empty, passed over" in said
    assert 0.5 < describe(workload, 16)["infinite_hit_rate"] < 1
