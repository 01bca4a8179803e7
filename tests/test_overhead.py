"""Modelled overhead: what a step does, what a profile says it takes, how it adds to time."""

import json
import re
import shlex
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
from helpers import ORDERS, VLLM, make, requests_of, sequence_of

import policies
from sim import cli
from sim.config import RunConfig
from sim.errors import UsageError
from sim.experiment import run
from sim.overhead import document_of, load_profile, load_shipped, profile_names, resolve
from sim.overhead.build import documents, own_documents, profile_name, read_recorded
from sim.overhead.evictions import COLUMNS as EVICTION_COLUMNS
from sim.overhead.fit import fit_profile, fit_refusals
from sim.overhead.measure import COLUMNS
from sim.overhead.profile import OverheadProfile, profile_to_document
from sim.scheduler import Scheduler, SchedulerConfig
from sim.types import CacheWork


def work_of(**counts):
    work = CacheWork()
    for name, value in counts.items():
        setattr(work, name, value)
    return work


def counted(work):
    return {name: n for name in CacheWork.__slots__ if (n := getattr(work, name))}


def test_every_kind_of_work_has_its_price():
    """A profile of 1 ns for one thing alone prices exactly the work of that name."""
    prices = {field.name.removeprefix("ns_per_") for field in fields(OverheadProfile)}
    names = {
        "request": "num_requests", "hashed_token": "num_hashed_tokens",
        "block_hit": "num_block_hits", "new_block": "num_new_blocks",
        "new_token": "num_new_tokens", "evicted_block": "num_evicted_blocks",
        "scanned_entry": "num_scanned_entries", "refusal": "num_refusals",
        "refused_hit": "num_refused_hits", "append": "num_appends",
        "append_block": "num_append_blocks", "table_block": "num_table_blocks",
        "request_freed": "num_requests_freed", "block_freed": "num_blocks_freed",
        "token_freed": "num_tokens_freed", "hit_block_freed": "num_hit_blocks_freed",
    }  # fmt: skip
    assert prices == set(names)
    assert set(names.values()) == set(CacheWork.__slots__)
    everything = work_of(**{name: 10 + i for i, name in enumerate(CacheWork.__slots__)})
    for price, name in names.items():
        profile = OverheadProfile(**{f"ns_per_{price}": 3.0})
        assert profile.work_ns(everything) == 3 * getattr(everything, name)


def test_a_step_counts_its_work():
    """Blocks of 4; r0 has 10 prompt tokens and 3 output tokens, r1 shares 8 of its 9."""
    r0, r1 = requests_of((range(10), range(100, 103)), ([*range(8), 50], [60]))
    allocator = make("vllm_v1", 20, 4)
    scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=6), allocator)
    first, second = sequence_of(r0, 4), sequence_of(r1, 4)
    scheduler.add(first)

    def step():
        taken = scheduler.schedule()
        scheduler.complete(taken)
        return counted(taken.work)

    # 6 of 10 tokens: two blocks, all ten tokens hashed.
    assert step() == {
        "num_requests": 1,
        "num_hashed_tokens": 10,
        "num_new_blocks": 2,
        "num_new_tokens": 6,
    }
    # The other 4: two fit the second block, two take a third; the table had two blocks.
    assert step() == {
        "num_appends": 1,
        "num_table_blocks": 2,
        "num_new_blocks": 1,
        "num_new_tokens": 4,
    }
    # Token 11 goes into the third block. r1 hits two blocks and takes one for its ninth token.
    scheduler.add(second)
    assert step() == {
        "num_appends": 1,
        "num_table_blocks": 3,
        "num_requests": 1,
        "num_hashed_tokens": 9,
        "num_block_hits": 2,
        "num_new_blocks": 1,
        "num_new_tokens": 1,
    }
    # r1 had one output token and is gone: one block of its own with one token, two that it hit.
    assert step() == {
        "num_appends": 1,
        "num_table_blocks": 3,
        "num_requests_freed": 1,
        "num_blocks_freed": 1,
        "num_tokens_freed": 1,
        "num_hit_blocks_freed": 2,
    }
    assert not scheduler.has_work()


def test_a_decoded_token_that_needs_a_block_counts_it():
    (request,) = requests_of((range(4), range(100, 103)))
    scheduler = Scheduler(SchedulerConfig(), make("vllm_v1", 20, 4))
    scheduler.add(sequence_of(request, 4))
    scheduler.complete(scheduler.schedule())
    work = scheduler.schedule().work
    assert counted(work) == {"num_appends": 1, "num_table_blocks": 1, "num_append_blocks": 1}


def test_an_admission_without_room_counts_its_lookup():
    """Blocks of 4 in a pool of 5: r0 holds 4; r1 would hit 2 of them and need 2 more."""
    r0, r1 = requests_of((range(13), range(100, 102)), ([*range(8), *range(50, 57)], [60]))
    allocator = make("vllm_v1", 5, 4)
    scheduler = Scheduler(SchedulerConfig(), allocator)
    scheduler.add(sequence_of(r0, 4))
    scheduler.add(sequence_of(r1, 4))
    first = scheduler.schedule()
    assert [seq.request_id for seq, _ in first.admitted] == ["r0"]
    # vLLM V1 may hit blocks as soon as they are allocated.
    assert (first.work.num_refusals, first.work.num_refused_hits) == (1, 2)
    scheduler.complete(first)
    second = scheduler.schedule()
    assert (second.work.num_refusals, second.work.num_refused_hits) == (1, 2)
    scheduler.complete(second)
    third = scheduler.schedule()
    assert [seq.request_id for seq, _ in third.admitted] == ["r1"]
    assert third.work.num_refusals == 0


def test_refusals_are_fitted_by_the_blocks_that_they_would_hit():
    hits = np.array([0.0, 10.0, 20.0])
    found = fit_refusals(hits, 1500 + 250 * hits)
    assert found == {"ns_per_refusal": 1500, "ns_per_refused_hit": 250}
    assert fit_refusals(np.zeros(2), np.zeros(2)) == {"ns_per_refusal": 1, "ns_per_refused_hit": 0}


def test_only_v1_looks_up_again_what_it_would_hit():
    for name in profile_names():
        profile = load_shipped(name)
        if name.startswith("vllm-"):
            assert 1000 < profile.ns_per_refusal < 2000
            assert (profile.ns_per_refused_hit > 0) == (name in ("vllm-0.8.5-v1", "vllm-0.33-v1"))


def serve(**settings):
    dials = {"num_requests": 40, "prompt": 256, "output": 8, "num_prefixes": 2, "rate": 1e6}
    return run(RunConfig(workload_args=dials, max_num_seqs=4, **settings)).summary


def test_time_advances_by_gpu_and_overhead_or_by_the_longer_of_both(tmp_path):
    profile = OverheadProfile(ns_per_append=1e6, ns_per_request=5e6)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_to_document(profile, "made up", {})))
    free, both, overlapped = (
        serve(overhead=overhead, overlap=overlap)
        for overhead, overlap in (("none", False), (str(path), False), (str(path), True))
    )
    # 40 admissions; every output token but the first is an append.
    assert both["overhead_s"] == pytest.approx(40 * 5e-3 + 40 * 7 * 1e-3)
    assert free["overhead_s"] == 0
    assert free["makespan_s"] == pytest.approx(free["gpu_s"])
    assert both["makespan_s"] == pytest.approx(both["gpu_s"] + both["overhead_s"])
    assert both["overhead_share"] == pytest.approx(both["overhead_s"] / both["makespan_s"])
    assert max(free["gpu_s"], both["overhead_s"]) <= overlapped["makespan_s"] < both["makespan_s"]
    assert both["overhead"] == str(path)


@pytest.mark.parametrize("name", policies.names())
def test_every_policy_has_a_profile_of_what_it_models(name):
    expected = {
        "none": "vllm-0.8.5-v1-off",
        "vllm_v0_scan": "vllm-0.6.4-v0",
        "vllm_v0": "vllm-0.8.5-v0",
        "vllm_v1": "vllm-0.8.5-v1",
        "vllm_v1_latest": "vllm-0.33-v1",
        # Not measured: a run says so.
        "sglang_radix": "none",
    }
    # Orders of eviction are priced as the allocator that they stand behind.
    assert serve(policy=name)["overhead"] == expected.get(name, "vllm-0.33-v1")
    assert (name in expected) != (name in ORDERS)


def test_the_baseline_of_v0_is_v0_without_caching():
    row = serve(policy="none", policy_args={"engine": "v0-0.8.5"})
    assert row["overhead"] == "vllm-0.8.5-v0-off"
    with pytest.raises(UsageError, match="engine=v2 was not measured without caching"):
        serve(policy="none", policy_args={"engine": "v2"})


def test_shipped_profiles_are_what_their_table_gives():
    rebuilt = documents() | own_documents()
    assert set(rebuilt) <= set(profile_names())
    for name, document in rebuilt.items():
        shipped = document_of(name)
        assert shipped["provenance"] == document["provenance"]
        for key, value in document["coefficients"].items():
            assert shipped["coefficients"][key] == pytest.approx(value, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("name", sorted(documents()))
def test_the_fit_of_allocations_is_good(name):
    """Median relative error under 10 % for every release."""
    assert document_of(name)["residuals"]["allocate"]["median"] < 0.08


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        ("vllm-0.6.4-v0", 4.1),
        ("vllm-0.8.5-v0", 2.7),
        ("vllm-0.8.5-v1", 0.59),
        ("vllm-0.33-v1", 0.47),
        ("vllm-0.8.5-v1-off", 0.14),
    ],
)
def test_an_allocation_of_4096_tokens_without_hits(name, milliseconds):
    """Blocks of 16 and a full pool: 256 blocks, all evicted; a scan looks at half of 256."""
    work = work_of(
        num_requests=1, num_hashed_tokens=4096, num_new_blocks=256, num_new_tokens=4096,
        num_evicted_blocks=256, num_scanned_entries=256 * 128,
    )  # fmt: skip
    assert load_shipped(name).work_ns(work) / 1e6 == pytest.approx(milliseconds, rel=0.15)


def test_a_fit_finds_the_profile_that_made_the_times():
    table = read_recorded().query("vllm_version == '0.8.5' and prefix_caching == 1")
    table = table[table["engine"] == "v1"].reset_index(drop=True)
    truth = OverheadProfile(
        ns_per_request=9000, ns_per_hashed_token=4, ns_per_block_hit=700, ns_per_new_block=1500,
        ns_per_new_token=2, ns_per_append=1200, ns_per_append_block=3000, ns_per_table_block=9,
        ns_per_request_freed=2500, ns_per_block_freed=250, ns_per_token_freed=3,
        ns_per_hit_block_freed=80,
    )  # fmt: skip
    for index, row in table.iterrows():
        block, prompt = row.block_size_tokens, row.prompt_tokens
        hit = round(row.measured_hit_rate * prompt / block)
        new, decoded = prompt / block - hit, min(2 * block, 32)
        times = {
            "allocate_us_p50": 9000 + 4 * prompt + 700 * hit + 1500 * new + 2 * new * block,
            "append_us_mean": 1200 + 3000 / block + 9 * (prompt / block + decoded / block / 2),
            "free_us_p50": 2500
            + 250 * (new + decoded / block)
            + 3 * (new * block + decoded)
            + 80 * hit,
        }
        for column, value in times.items():
            table.loc[index, column] = value / 1e3
    found, residuals = fit_profile(table, evicts=True, scans=False)
    for key, value in asdict(truth).items():
        assert asdict(found)[key] == pytest.approx(value, rel=0.02, abs=1.0), key
    assert max(residual.worst for residual in residuals) < 1e-3


def test_scanning_is_what_v0_0_6_4_pays_for():
    """One entry costs about 50 ns; the scan is why long prompts without hits are so slow."""
    assert 30 < load_shipped("vllm-0.6.4-v0").ns_per_scanned_entry < 70
    others = [name for name in profile_names() if name.startswith("vllm-") and "0.6.4" not in name]
    assert all(load_shipped(name).ns_per_scanned_entry == 0 for name in others)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "is no overhead profile: it lacks 'coefficients'"),
        ("[]", "is no overhead profile"),
        ("{", "not valid JSON"),
        ('{"coefficients": {"ns_per_thought": 1}}', "'ns_per_thought' is no coefficient"),
        ('{"coefficients": {"ns_per_request": -1}}', "ns_per_request is -1 but must be a number"),
        ('{"coefficients": {"ns_per_request": true}}', "ns_per_request is True but must be"),
        ('{"coefficients": {"ns_per_request": 1}}', "ns_per_hashed_token, .* is missing"),
    ],
)
def test_a_bad_profile_is_named_with_its_fault(tmp_path, text, sentence):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence) as caught:
        load_profile(str(path))
    assert str(path) in str(caught.value)


def test_an_unknown_profile_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="--overhead 'lots' is no profile: choose none, vllm"):
        resolve("lots", "vllm_v1", {})
    assert resolve("vllm", "mine:Policy", {}) == (OverheadProfile(), "none")


def test_profiles_are_named_by_release():
    assert profile_name("0.8.5", "v1", caching=False) == "vllm-0.8.5-v1-off"


def test_cascade_saves_the_reads_of_a_common_prefix():
    """All requests share 512 of 1,024 tokens and decode together."""
    dials = {
        "num_requests": 16, "prompt": 1024, "hit_rate": 0.46875, "num_prefixes": 1, "output": 64,
        "rate": 1e9,
    }  # fmt: skip
    times = [
        run(RunConfig(workload_args=dials, overhead="none", cascade=share)).summary["gpu_s"]
        for share in (0.0, 0.5, 1.0)
    ]
    assert times[0] > times[1] > times[2]
    assert np.isclose(times[0] - times[1], times[1] - times[2], rtol=1e-3)
    off = [
        run(RunConfig(workload_args=dials, policy="none", overhead="none", cascade=share)).summary[
            "gpu_s"
        ]
        for share in (0.0, 1.0)
    ]
    assert off[0] == off[1]


def test_a_measured_table_becomes_a_profile_that_a_run_takes(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(
            shlex.split(
                "overhead --policy vllm_v1 --block-sizes 8,16 --prompt-tokens 64,128 "
                f"--hit-rates 0,0.5 --repetitions 5 --fit {tmp_path}"
            )
        )
    assert ended.value.code == 0
    path = tmp_path / "vllm_v1.json"
    assert "median error of an allocation" in capsys.readouterr().err
    assert serve(overhead=str(path))["overhead_s"] > 0


def test_our_own_profiles_are_shipped_for_every_policy_that_was_measured():
    for name in ("none", *VLLM):
        assert serve(policy=name, overhead="own")["overhead"] == f"own-{name}"


def test_the_documentation_names_every_coefficient_and_column():
    text = (Path(__file__).parents[1] / "docs" / "overhead.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    coefficients = {field.name for field in fields(OverheadProfile)}
    assert coefficients == {name for name in named if name.startswith("ns_per_")}
    assert set(COLUMNS) <= named
    assert set(EVICTION_COLUMNS) <= named
    document = document_of("vllm-0.8.5-v1")
    assert set(document) <= named
    assert set(document["residuals"]["allocate"]) - {"operation"} <= named
    # No count is named that there is not.
    assert {name for name in named if name.startswith("count_")} <= set(COLUMNS)
