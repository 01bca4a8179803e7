"""Odd trace files, and what reading them must give: ../shared/cases/traces and cases.json."""

import json

import numpy as np
import pytest
from helpers import SHARED, needs

from sim.config import RunConfig
from sim.errors import UsageError
from sim.experiment import run
from workloads import check_trace, read, shared_prefix_tokens

CASES = SHARED / "cases"
FILES = CASES / "traces"
pytestmark = needs(CASES)


def arrivals_s(workload):
    return [request.arrival_ns / 1e9 for request in workload.requests]


def lines_of(problems, name):
    prefix = f"{FILES / name}:"
    assert all(problem.startswith(prefix) and problem.endswith(".") for problem in problems)
    return [int(problem.removeprefix(prefix).split(":")[0]) for problem in problems]


def problem_lines(name):
    return lines_of(check_trace(FILES / name).problems, name)


def test_every_file_is_tested():
    names = json.loads((FILES / "expected.json").read_text())
    tested = {name[len("test_") :][:2] for name in globals() if name.startswith("test_")}
    assert {name[:2] for name in names} <= tested


def test_01_milliseconds():
    workload = read(FILES / "01_ms_timestamps.jsonl")
    assert arrivals_s(workload) == [0, 3, 6]
    assert workload.warnings == ()
    (warning,) = read(FILES / "01_ms_timestamps.jsonl", time_unit="s").warnings
    assert "6000 s, read as seconds" in warning
    assert "--time-unit" in warning


def test_02_seconds_and_sessions():
    workload = read(FILES / "02_seconds_float_sessions.jsonl")
    assert arrivals_s(workload) == [0, 1.386, 8.886]
    assert workload.identity_block_size == 16
    assert [request.num_prompt_tokens for request in workload.requests] == [40, 60, 16]
    assert [request.session_id for request in workload.requests] == ["159", "159", "161"]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 40, 0]
    # 40 + 12 tokens, the last of which is never fed back, stand in the next prompt.
    assert shared_prefix_tokens(workload.requests, outputs=True).tolist() == [0, 51, 0]


def test_03_unsorted_with_ties():
    workload = read(FILES / "03_unsorted_ties.jsonl")
    assert [request.request_id for request in workload.requests] == ["a", "c", "d", "b", "e"]
    assert "2 rows out of order" in workload.warnings[0]


def test_05_lengths_that_do_not_fit_ids():
    name = "05_length_hash_mismatch.jsonl"
    assert problem_lines(name) == [2, 3, 4]
    with pytest.raises(UsageError, match=f"{name}:2: hash_ids has 2 ids"):
        read(FILES / name)
    workload = read(FILES / name, mode="lenient")
    assert [request.num_prompt_tokens for request in workload.requests] == [500, 20, 600, 1500]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 20, 500, 600]
    assert "3 rows with a number of hash_ids that does not fit" in workload.warnings[0]


def test_06_missing_fields():
    name = "06_missing_fields.jsonl"
    assert problem_lines(name) == [4, 5]
    workload = check_trace(FILES / name).workload
    assert [request.num_output_tokens for request in workload.requests] == [20, 1, 20]
    assert len(read(FILES / name, mode="lenient", timed=False).requests) == 4


def test_07_bom_crlf_and_blank_lines():
    workload = read(FILES / "07_bom_crlf_blank.jsonl")
    assert arrivals_s(workload) == [0, 0.01, 0.02]
    assert workload.warnings == ()


def test_08_dates_of_azure():
    workload = read(FILES / "08_azure_7digit.csv")
    assert arrivals_s(workload) == [0, 0.001, 0.008, 0.010, 0.999]
    assert [request.num_output_tokens for request in workload.requests] == [5, 6, 15, 1, 0]
    assert not workload.has_prefix_info


def test_10_nan_negative_zero():
    name = "10_nan_negative_zero.jsonl"
    assert problem_lines(name) == [2, 3, 4, 6, 8]
    workload = check_trace(FILES / name).workload
    assert arrivals_s(workload) == [0, 1, 3]
    assert [request.num_output_tokens for request in workload.requests] == [5, 0, 5]


def test_12_a_truncated_last_line():
    name = "12_truncated_last_line.jsonl"
    assert problem_lines(name) == [3]
    workload = read(FILES / name, mode="lenient")
    assert len(workload.requests) == 2
    assert "in line 3: the last line is cut off" in workload.warnings[0]


def test_14_a_web_page():
    (problem,) = check_trace(FILES / "14_html_instead.jsonl").problems
    assert "looks like HTML" in problem


def test_15_an_array():
    workload = read(FILES / "15_json_array.jsonl")
    assert arrivals_s(workload) == [0, 0.01]
    assert shared_prefix_tokens(workload.requests).tolist() == [0, 512]


def test_16_unicode(prefixsim):
    name = FILES / "16_unicode_text.jsonl"
    assert len(read(name).requests) == 3
    code, printed, _ = prefixsim("workload", "check", name, "--json")
    assert (code, json.loads(printed)["num_requests"]) == (0, 3)


def test_17_cumulative_turns():
    workload = read(FILES / "17_cumulative_turns.jsonl")
    assert [request.num_prompt_tokens for request in workload.requests] == [32, 64]
    config = RunConfig(workload=str(FILES / "17_cumulative_turns.jsonl"), block_size=16)
    assert run(config).requests["num_cached_tokens"].tolist() == [0, 32]
    delta = read(FILES / "17_cumulative_turns.jsonl", turns="delta")
    assert [request.num_prompt_tokens for request in delta.requests] == [32, 32 + 8 + 64]


def test_18_failed_rows_of_burstgpt():
    workload = read(FILES / "18_burst_style.csv")
    assert arrivals_s(workload) == [0, 40, 40]
    assert [request.num_prompt_tokens for request in workload.requests] == [472, 1087, 417]
    assert "1 row with an output of 0 tokens, which failed" in workload.warnings[0]
    assert not workload.has_prefix_info


def test_20_a_request_beyond_the_cache():
    config = RunConfig(
        workload=str(FILES / "20_oversized_request.jsonl"), kv_capacity="1000blocks", block_size=16
    )
    rows = run(config).requests
    assert rows["status"].tolist() == ["finished", "rejected", "finished"]
    assert rows["rejection"][1] == f"needs {-(-(131_072 + 1999) // 16)} of 1000 blocks"


def test_scenario_d01_trace_blocks_become_engine_blocks(tmp_path):
    case = next(c for c in json.loads((CASES / "cases.json").read_text()) if c["id"] == "D01")
    scenario, expected = case["scenario"], case["expected"]
    rows = [*scenario["rows"], {**scenario["rows"][0], "timestamp": 120_000}]
    path = tmp_path / "d01.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    for block_size in scenario["engine_block_sizes"]:
        config = RunConfig(workload=str(path), block_size=block_size, max_num_seqs=1)
        cached = run(config).requests["num_cached_tokens"].tolist()
        assert cached[1] == expected["row2_cached"][str(block_size)]
        repeat = expected["identical_repeat_of_row1"].get(str(block_size))
        assert repeat is None or cached[2] == repeat


def test_scenario_e10_is_file_17():
    case = next(c for c in json.loads((CASES / "cases.json").read_text()) if c["id"] == "E10")
    (name,) = case["scenario"]["files"]
    config = RunConfig(workload=str(FILES / name), trace_block_size=16, block_size=16)
    rows = run(config).requests
    expected = case["expected"]["cumulative"]
    assert rows["num_prompt_tokens"].tolist() == expected["prompt_tokens"]
    assert rows["num_cached_tokens"].tolist() == expected["cached"]


def test_scenario_e19_open_and_closed_loop(tmp_path):
    turns = [
        {"timestamp": 0, "input_length": 512, "output_length": 9, "hash_ids": [0]},
        {
            "timestamp": 5000,
            "input_length": 512,
            "output_length": 9,
            "hash_ids": [0],
            "delay": 2000,
        },
    ]
    path = tmp_path / "e19.jsonl"
    path.write_text("\n".join(json.dumps({**turn, "session_id": "s"}) for turn in turns))
    # Each of the 9 steps of an answer takes 8/9 s.
    cost = tmp_path / "cost.json"
    step_ns = 8 * 10**9 // 9
    coefficients = {"step_base_ns": step_ns, "step_per_token_ns": 0, "step_per_seq_ns": 0}
    cost.write_text(json.dumps({"form": "linear", "coefficients": coefficients}))
    for sessions, second in (("open", 5), ("closed", 10)):
        config = RunConfig(workload=str(path), cost=str(cost), overhead="none", sessions=sessions)
        arrivals = run(config).requests["arrival_s"].to_numpy()
        assert np.allclose(arrivals, [0, second], atol=1e-6)
