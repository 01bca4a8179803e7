"""Presets: as accurate as they state, physically sane, and rebuilt from their tables."""

import json
import math

import pytest
from helpers import batch_of
from hypothesis import given
from hypothesis import strategies as st

from sim.cost_fit import residuals_of
from sim.errors import UsageError
from sim.presets import list_presets, load_preset
from sim.presets.build import HERE, build
from sim.presets.published import table_points

FITTED = json.loads((HERE / "facts.json").read_text())["fitted"]
PAIRS = list_presets()


@pytest.mark.parametrize("pair", PAIRS)
@given(prompt=st.integers(64, 32_768), share=st.floats(0.02, 0.99))
def test_a_cached_prefix_makes_a_prefill_cheaper(pair, prompt, share):
    cost = load_preset(*pair).cost
    cached = max(int(prompt * share), 1)
    assert cost.step_ns(batch_of((prompt - cached, cached))) < cost.step_ns(batch_of((prompt, 0)))


def test_the_presets_are_what_building_them_gives():
    documents = build()
    assert sorted(documents) == PAIRS
    for (model, gpu), built in documents.items():
        kept = json.loads((HERE / "data" / f"{model}_{gpu}.json").read_text())
        assert_alike(kept, built, f"{model} on {gpu}")


def assert_alike(kept, built, where):
    assert type(kept) is type(built), where
    if isinstance(kept, dict):
        assert kept.keys() == built.keys(), where
        for key in kept:
            assert_alike(kept[key], built[key], f"{where}: {key}")
    elif isinstance(kept, list):
        assert len(kept) == len(built), where
        for one, other in zip(kept, built, strict=True):
            assert_alike(one, other, where)
    elif isinstance(kept, float):
        assert kept == pytest.approx(built, rel=1e-6, abs=1e-6), where
    else:
        assert kept == built, where


@pytest.mark.parametrize("entry", FITTED, ids=lambda entry: f"{entry['model']}_{entry['gpu']}")
def test_fitted_presets_are_as_accurate_as_they_state(entry):
    preset = load_preset(entry["model"], entry["gpu"])
    residuals = residuals_of(preset.cost, table_points(entry["table"], entry["rows"]))
    assert residuals.median < 0.035
    assert residuals.worst < 0.26
    stated = preset.residuals
    assert stated is not None
    for name in ("num_points", "median", "p90", "worst", "worst_at"):
        assert getattr(residuals, name) == pytest.approx(stated[name], rel=1e-5), name


@pytest.mark.parametrize(
    ("column", "published_ms"),
    [
        (("llama-3-8b", "a100-80g"), 64.7),
        (("llama-3-8b", "h100"), 22.1),
        (("qwen3-8b", "h200"), 22.1),
        (("llama-3-70b", "h100"), 67.4),
    ],
)
def test_a_published_prefill_of_1024_tokens(column, published_ms):
    cost = load_preset(*column).cost
    assert cost.step_ns(batch_of((1024, 0))) / 1e6 == pytest.approx(published_ms, rel=0.02)


def test_derived_presets_say_so_and_how_far_off_it_is():
    fitted = {(entry["model"], entry["gpu"]) for entry in FITTED}
    for pair in PAIRS:
        preset = load_preset(*pair)
        if pair in fitted:
            assert preset.provenance.startswith("Fitted to")
            continue
        assert preset.provenance.startswith("No table; derived from the preset")
        assert preset.residuals is None
        assert preset.checks
        for check in preset.checks:
            assert check["residuals"]["median"] < 0.06
            assert check["residuals"]["worst"] < 0.16


@pytest.mark.parametrize("pair", PAIRS)
def test_no_preset_beats_its_data_sheet(pair):
    for name, share in load_preset(*pair).roofline_share.items():
        assert 0.4 < share <= 1, name


@pytest.mark.parametrize(
    ("pair", "num_sequences", "context", "low_ms", "high_ms"),
    [
        # 15 GB of weights at 3.35 TB/s are 4.5 ms.
        (("llama-3-8b", "h100"), 1, 512, 5, 7),
        # 262,144 keys of 131,072 bytes are 34 GB, 10.3 ms more.
        (("llama-3-8b", "h100"), 64, 4096, 14.8, 20),
        (("llama-3-8b", "a100-80g"), 1, 512, 7.4, 12),
        (("qwen3-8b", "h200"), 64, 4096, 11, 16),
        (("llama-3-70b", "h100"), 1, 512, 10.4, 17),
    ],
)
def test_decode_steps_are_sane(pair, num_sequences, context, low_ms, high_ms):
    step_ns = load_preset(*pair).cost.step_ns(batch_of(*[(1, context - 1)] * num_sequences))
    assert low_ms < step_ns / 1e6 < high_ms


def test_decode_steps_measured_on_an_rtx_4090():
    entry = FITTED[0]
    steps = table_points(entry["table"], entry["rows"])
    decodes = steps[(steps.new_tokens == 1) & (steps.decodes == 0)]
    assert len(decodes) == 71
    residuals = residuals_of(load_preset("llama-3-8b", "rtx4090").cost, decodes)
    assert residuals.median < 0.02
    assert residuals.worst < 0.12


@pytest.mark.parametrize(
    ("name", "num_params", "kv_bytes"),
    [
        ("llama-3-8b", 8_030_261_248, 131_072),
        ("llama-3-70b", 70_553_706_496, 327_680),
        ("qwen3-8b", 8_190_735_360, 147_456),
    ],
)
def test_model_facts(name, num_params, kv_bytes):
    model = load_preset(name, "h100").model
    assert (model.num_params, model.kv_bytes_per_token) == (num_params, kv_bytes)
    assert model.weight_bytes == 2 * num_params


def test_kv_capacity_by_hand():
    # 81,559 MiB x 0.9 = 76,968,178,483.2 bytes, less 16,060,522,496 of weights, leave
    # 60,907,655,987.2; at 2 x 32 x 8 x 128 x 2 = 131,072 bytes a token, 464,688.5 tokens.
    preset = load_preset("llama-3-8b", "h100")
    assert preset.tensor_parallel == 1
    assert preset.kv_capacity_tokens() == (81_559 * 2**20 * 9 // 10 - 16_060_522_496) // 131_072
    assert preset.kv_capacity_tokens(1.0) > preset.kv_capacity_tokens(0.9)


@pytest.mark.parametrize("utilization", [0, 1.01, -1, math.nan])
def test_an_impossible_utilization(utilization):
    with pytest.raises(UsageError, match="utilization"):
        load_preset("llama-3-8b", "h100").kv_capacity_tokens(utilization)


def test_weights_that_leave_no_room():
    with pytest.raises(UsageError, match=r"16\.1 GB of weights"):
        load_preset("llama-3-8b", "rtx4090").kv_capacity_tokens(0.5)


def test_unknown_presets_name_the_known_ones():
    with pytest.raises(UsageError, match=r"--model 'gpt-2' .*llama-3-70b, llama-3-8b, qwen3-8b"):
        load_preset("gpt-2", "h100")
    with pytest.raises(UsageError, match=r"--gpu 'rtx4090' .*llama-3-70b; .*a100-80g, h100, h200"):
        load_preset("llama-3-70b", "rtx4090")
