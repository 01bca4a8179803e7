"""Calibration: the grid, the fit, resuming, others' measurements, and runs with its file."""

import json
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

from gpu_backend import measure
from gpu_backend.measure import Point, StepMeter, grid, measure_all
from gpu_backend.shape import PRESETS
from sim import calibrate
from sim.config import RunConfig
from sim.cost import EagerStepCost, StepCost, load_cost
from sim.cost_fit import fit_step_cost, relative_errors
from sim.errors import UsageError
from sim.inputs import cost_of
from sim.plots.calibration import calibration
from sim.prove import ModelChoice, make_executor

COST = EagerStepCost(3e6, 20_000.0, 30.0, 300.0, 60_000.0, 80.0, 1.5e6)
GRID = grid(max_tokens=256, max_context=1024, max_batch=16, max_kv_tokens=8192)
PEAKS = {"flops_per_s": 1e11, "bytes_per_s": 1e10}
MACHINE = {"device": "cpu", "name": "a machine"}
MODEL = {"name": "tiny", "dtype": "float32"}


def seconds_of(point, cost=COST):
    row = asdict(point)
    table = pd.DataFrame([{**row, "seconds": 1.0}])
    return float(1 + relative_errors(cost, table)[0])


def table_of(cost=COST, noise=0.0):
    rng = np.random.default_rng(0)
    rows = [
        {**asdict(point), "seconds": seconds_of(point, cost) * float(rng.lognormal(0, noise))}
        for point in GRID
    ]
    return pd.DataFrame(rows)


# The grid


def test_the_grid_keeps_within_its_limits_and_tells_all_terms_apart():
    assert len(set(GRID)) == len(GRID) >= 60
    for point in GRID:
        assert point.num_new_tokens <= 256
        assert point.new_tokens + point.cached_tokens <= 1024
        assert point.num_context_tokens <= 8192
    assert {point.sequences for point in GRID if point.new_tokens == 1} >= {1, 2, 4, 8, 16}
    assert any(point.decodes for point in GRID)
    assert any(point.cached_tokens == 0 for point in GRID)
    shares = [p for p in measure.hit_rate_points(256) if p in GRID]
    assert len(shares) == 9


def test_a_step_takes_the_blocks_of_its_sequences():
    point = Point(3, 5, 2, 4, 7)
    assert point.num_new_tokens == 10
    assert point.num_context_tokens == 2 * 8 + 4 * 8
    assert point.num_blocks(4) == 2 * 2 + 4 * 2
    assert point.num_blocks(16) == 2 + 4


# The fit


def test_coefficients_come_back_from_exact_times():
    fitted, residuals = fit_step_cost(table_of(), eager=True)
    assert residuals.worst < 0.02
    assert fitted.ns_per_pair == pytest.approx(COST.ns_per_pair, rel=0.1)
    assert fitted.ns_per_context_token == pytest.approx(COST.ns_per_context_token, rel=0.1)
    assert fitted.launch_ns + fitted.min_ns == pytest.approx(4.5e6, rel=0.05)


def test_points_left_out_judge_the_fit():
    document = calibrate.fitted(table_of(noise=0.05), MACHINE, MODEL, PRESETS["tiny"], PEAKS)
    # Each point is left out of one of five fits.
    assert document["held_out"]["num_points"] == len(document["points"]) == len(GRID)
    assert document["held_out"]["median"] >= document["residuals"]["median"]
    assert 0.01 < document["held_out"]["median"] < 0.1
    assert document["preset"] is None


def test_a_cost_at_the_peak_has_a_share_of_one():
    shape = PRESETS["small"]
    per_token = 2 * (shape.num_params - 2 * shape.vocab_size * shape.hidden_size)
    cost = StepCost(
        min_ns=1e9 * 4 * (shape.num_params - shape.vocab_size * shape.hidden_size) / 1e10,
        ns_per_new_token=1e9 * per_token / 1e11,
        ns_per_pair=1e9 * 4 * shape.num_layers * shape.num_heads * shape.head_dim / 1e11,
        ns_per_context_token=1e9 * 4 * shape.kv_values_per_token / 1e10,
    )
    for share in calibrate.roofline_share(cost, shape, PEAKS, "float32").values():
        assert share == pytest.approx(1)
    # Half as many bytes in bf16.
    shares = calibrate.roofline_share(cost, shape, PEAKS, "bfloat16")
    assert shares["ns_per_context_token"] == pytest.approx(0.5)
    assert shares["ns_per_pair"] == pytest.approx(1)
    assert calibrate.roofline_share(StepCost(0, 0), shape, PEAKS, "float32")["min_ns"] is None


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "llama-3-8b/h100"),
        ("NVIDIA A100-SXM4-80GB", "llama-3-8b/a100-80g"),
        ("NVIDIA GeForce RTX 4090", "llama-3-8b/rtx4090"),
        ("AMD EPYC", None),
    ],
)
def test_the_preset_of_a_known_gpu_is_compared(machine, name):
    found = calibrate.preset_error(table_of(), "llama-3-8b", machine)
    assert (found and found["name"]) == name
    if found:
        assert found["median"] > 0
        assert found["num_points"] == len(GRID)


# Measuring


class SlowMeter:
    """Stands for a machine: exact times, one pass three times as slow."""

    def __init__(self):
        self.num_calls = 0

    def seconds(self, point):
        self.num_calls += 1
        slow = len(GRID) < self.num_calls <= 2 * len(GRID)
        return seconds_of(point) * (3 if slow else 1)


def test_a_disturbed_pass_does_not_count():
    meter = SlowMeter()
    times = measure_all(meter, GRID, passes=3, done={}, on_point=lambda *_: None)
    assert meter.num_calls == 3 * len(GRID)
    assert times == {point: pytest.approx(seconds_of(point)) for point in GRID}


def test_what_was_measured_is_not_measured_again(tmp_path):
    output = tmp_path / "cost.json"
    settings = {"model": "tiny"}
    first = calibrate._Partial(output, settings)
    assert first.load() == {}
    for point in GRID[:7]:
        first.add(0, point, 0.5)
    path = tmp_path / "cost.json.partial.jsonl"
    # Interrupted in the middle of a line.
    path.write_text(path.read_text() + '{"pass": 0, "poi')
    again = calibrate._Partial(output, settings)
    done = again.load()
    assert done == {(0, point): 0.5 for point in GRID[:7]}
    meter = SlowMeter()
    measure_all(meter, GRID, passes=1, done=done, on_point=again.add)
    assert meter.num_calls == len(GRID) - 7
    # Another machine or model starts anew.
    assert calibrate._Partial(output, {"model": "small"}).load() == {}


def test_a_real_step_computes_what_its_point_says():
    executor = make_executor(ModelChoice("tiny", device="cpu"))
    meter = StepMeter(executor, 4, 40)
    point = Point(3, 5, 2, 4, 7)
    chunks = meter._chunks(point)
    sizes = [(len(chunk.token_ids), chunk.num_computed_tokens) for chunk in chunks]
    assert sizes == [(3, 5)] * 2 + [(1, 7)] * 4
    blocks = [block for chunk in chunks for block in chunk.block_table]
    assert len(set(blocks)) == len(blocks) == point.num_blocks(4)
    assert meter.seconds(point) > 0


# The command, from beginning to end on a grid that takes seconds

SMALL = ("--model", "tiny", "--device", "cpu", "--max-tokens", "32", "--max-context", "64",
         "--max-batch", "4", "--passes", "1")  # fmt: skip


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    output = tmp_path_factory.mktemp("calibration") / "cost.json"
    limits = calibrate.Limits(max_tokens=32, max_context=64, max_batch=4, passes=1)
    calibrate.calibrate(ModelChoice("tiny", device="cpu"), output, limits=limits)
    return output


def test_a_calibration_says_how_it_came_about(calibrated):
    document = json.loads(calibrated.read_text())
    assert document["machine"]["device"] == "cpu"
    assert document["machine"]["threads"] == 1
    assert document["machine"]["torch"]
    assert document["model"]["block_size"] == 16
    assert [row["block_size"] for row in document["blocks"]["measured"]["sizes"]] == [
        1, 2, 4, 8, 16, 32, 64,
    ]  # fmt: skip
    assert {row["block_size"] for row in document["copies"]} == {1, 16, 64, 256}
    assert document["roofline"]["flops_per_s"] > 1e8
    assert not calibrated.with_name("cost.json.partial.jsonl").exists()
    assert isinstance(load_cost(calibrated), EagerStepCost)


def test_a_calibration_is_drawn(calibrated):
    figure = calibration(json.loads(calibrated.read_text()))
    left, right = figure.axes
    assert left.get_xlabel() == "measured (ms)"
    assert right.get_title(loc="left") == "prefill of 32 tokens"


def test_a_run_takes_the_cost_of_its_block_size(calibrated, tmp_path):
    document = json.loads(calibrated.read_text())
    document["blocks"] |= {"ns_per_block": 800.0, "block_size": 16}
    document["coefficients"]["ns_per_context_token"] = 100.0
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(document))

    def per_token(block_size):
        cost, _ = cost_of(RunConfig(cost=str(path), block_size=block_size))
        return cost.ns_per_context_token

    assert per_token(16) == 100
    # A token costs 1/8 instead of 1/16 of a block: 50 ns more; and at 64, 37.5 ns less.
    assert per_token(8) == 150
    assert per_token(64) == 62.5
    assert load_cost(path) == replace(load_cost(path, 16))
    document["blocks"]["ns_per_block"] = -1
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="ns_per_block is -1 but must be"):
        load_cost(path, 8)


def test_the_command_prints_tables_and_says_that_no_gpu_was_used(prefixsim, tmp_path):
    output = tmp_path / "mine.json"
    code, out, err = prefixsim("calibrate", *SMALL, "-o", output)
    assert code == 0, err
    for words in ("ns_per_new_token", "fits that did not see them", "block size", "GB/s"):
        assert words in out
    assert "not a GPU's" in err
    assert output.with_suffix(".png").exists()
    code, _, _ = prefixsim("run", "shared-prefix", "--num-requests", "20", "--cost", output)
    assert code == 0


def test_without_torch_there_is_a_hint(prefixsim, monkeypatch, tmp_path):
    monkeypatch.setattr("gpu_backend.find_spec", lambda name: None)
    code, _, err = prefixsim("calibrate", "-o", tmp_path / "x.json")
    assert code == 2
    assert err.endswith('install it with: pip install "prefixsim[gpu]"\n')


def test_a_folder_that_cannot_be_written_is_named_first(prefixsim, tmp_path):
    code, _, err = prefixsim("calibrate", *SMALL, "-o", tmp_path / "no" / "x.json")
    assert code == 2
    assert "cannot be written" in err


# Others' measurements


def test_a_table_of_others_is_fitted(prefixsim, tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_backend.find_spec", lambda name: None)  # it needs no torch
    plain = StepCost(3e6, 20_000.0, 30.0, 300.0, 60_000.0, 80.0)
    path, output = tmp_path / "theirs.csv", tmp_path / "cost.json"
    table_of(plain).rename(columns={"sequences": "batch"}).to_csv(path, index=False)
    code, out, err = prefixsim("calibrate", "--from", path, "-o", output)
    assert code == 0, err
    assert "fits that did not see them" in out
    cost = load_cost(output)
    assert cost.ns_per_new_token == pytest.approx(20_000, rel=0.05)
    assert cost.ns_per_pair == pytest.approx(30, rel=0.05)


def test_prefills_alone_need_the_cost_of_reading(prefixsim, tmp_path):
    path, output = tmp_path / "theirs.csv", tmp_path / "cost.json"
    table = table_of()
    alone = table[(table["new_tokens"] > 1) & (table["decodes"] == 0)]
    columns = ["new_tokens", "cached_tokens", "sequences", "seconds"]
    alone[columns].rename(columns={"sequences": "batch"}).to_csv(path, index=False)
    code, _, err = prefixsim("calibrate", "--from", path, "-o", output)
    assert code == 2
    assert f"--from {path}: cost table: all" in err
    code, _, err = prefixsim(
        "calibrate", "--from", path, "-o", output, "--ns-per-context-token", "300"
    )
    assert code == 0, err
    assert load_cost(output).ns_per_context_token == 300


def test_a_table_that_is_none_is_named(prefixsim, tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text("a,b\n1,2\n")
    code, _, err = prefixsim("calibrate", "--from", path, "-o", tmp_path / "x.json")
    assert code == 2
    assert "must have rows and new_tokens, cached_tokens, seconds" in err
    code, _, err = prefixsim("calibrate", "--from", tmp_path / "no.csv")
    assert code == 2
    assert "cannot be read as CSV" in err
