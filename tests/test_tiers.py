"""Tiers below the GPU, worked by hand: what is loaded, what it takes, where copies go."""

import pytest
from helpers import Clock, make, requests_of, sequence_of

from sim.engine import Engine
from sim.recorder import Recorder
from sim.scheduler import SchedulerConfig
from sim.tiers import Tier, Tiered, prefill_pricer
from sim.types import Load

A, B, C, D, E = (list(range(start, start + 9)) for start in (10, 20, 30, 40, 50))
"""Prompts of two full blocks of 4 tokens and one token more."""

BASE_NS, TOKEN_NS = 1000, 100
COMPUTED_NS = BASE_NS + 9 * TOKEN_NS
"""A prompt, computed."""

HOST_NS = 30 + 2 * 50 + BASE_NS + TOKEN_NS
"""A prompt of which two blocks come from host memory: latency, two blocks, a step of one token."""


class Cost:
    """A step takes 1000 ns and 100 ns a token."""

    def step_ns(self, batch):
        return BASE_NS + TOKEN_NS * batch.num_new_tokens


def host(num_blocks=10, ns_per_block=50, latency_ns=30):
    return Tier("host", num_blocks, ns_per_block, latency_ns)


def ssd(num_blocks=10, ns_per_block=200, latency_ns=70):
    return Tier("ssd", num_blocks, ns_per_block, latency_ns)


def serve(*prompts, tiers, write="through", policy="vllm_v1", num_blocks=3, **limits):
    """Serve prompts, 10,000 ns apart, each with one token of output, from a pool of three blocks.

    Every prompt needs the whole pool, so that each drives out the one before it.
    """
    recorder = Recorder(keep_steps=True)
    engine = Engine(
        lambda clock: Tiered(
            make(policy, num_blocks, 4, clock), tiers, write, prefill_pricer(Cost())
        ),
        SchedulerConfig(**limits),
        Cost(),
        recorder,
    )
    rows = [(prompt, [1]) for prompt in prompts]
    engine.run(requests_of(*rows, arrivals_ns=[10_000 * i for i in range(len(rows))]))
    return recorder


def ttfts(recorder):
    return [record.first_token_ns - record.arrival_ns for record in recorder.requests]


def told(recorder):
    """Tokens from host memory, from the SSD, and recomputed, of each request."""
    return [
        (record.num_host_tokens, record.num_ssd_tokens, record.num_recomputed_tokens)
        for record in recorder.requests
    ]


def keys(prompt):
    return requests_of((prompt, [1]))[0].content.block_keys(4).tolist()


# Time.


def test_what_the_gpu_lost_is_loaded_from_host_memory():
    recorder = serve(A, B, A, tiers=[host()])
    assert told(recorder) == [(0, 0, 0), (0, 0, 0), (8, 0, 0)]
    assert [record.num_cached_tokens for record in recorder.requests] == [0, 0, 8]
    assert ttfts(recorder) == [COMPUTED_NS, COMPUTED_NS, HOST_NS] == [1900, 1900, 1230]
    assert recorder.requests[2].load_ns == recorder.load_ns == 130
    assert recorder.gpu_ns == 2 * COMPUTED_NS + BASE_NS + TOKEN_NS


def test_without_a_tier_it_is_computed_again():
    recorder = Recorder()
    Engine(lambda clock: make("vllm_v1", 3, 4, clock), SchedulerConfig(), Cost(), recorder).run(
        requests_of((A, [1]), (B, [1]), (A, [1]), arrivals_ns=[0, 10_000, 20_000])
    )
    assert ttfts(recorder) == [COMPUTED_NS] * 3


@pytest.mark.parametrize(
    ("ns_per_block", "expected", "tokens"),
    [
        (399, 1898, (8, 0, 0)),
        (400, 1900, (8, 0, 0)),  # as quick as computing: loaded
        (401, 1900, (0, 0, 8)),
    ],
)
def test_what_is_quicker_to_compute_is_computed(ns_per_block, expected, tokens):
    tier = host(ns_per_block=ns_per_block, latency_ns=0)
    recorder = serve(A, B, A, tiers=[tier])
    assert told(recorder)[2] == tokens
    assert ttfts(recorder)[2] == expected
    assert recorder.requests[2].num_cached_tokens == tokens[0]
    assert tier.num_blocks_read == tokens[0] // 4


def test_what_the_gpu_still_has_is_not_loaded():
    # Of the five blocks B takes the unfilled one, two that were never used and the last of A.
    recorder = serve(A, B, A, tiers=[host()], num_blocks=4)
    record = recorder.requests[2]
    assert (record.num_cached_tokens, record.num_host_tokens) == (8, 4)
    assert record.load_ns == 30 + 50


def test_loads_of_one_step_wait_for_each_other():
    tier = host()
    tiered = Tiered(make("vllm_v1", 10, 4, Clock()), [tier], "through", prefill_pricer(Cost()))
    recorder = Recorder()
    requests = requests_of((A, [1]), (B, [1]))
    for request in requests:
        for key in request.content.block_keys(4).tolist():
            tier.put(key)
    Engine(lambda _: tiered, SchedulerConfig(), Cost(), recorder).run(requests)
    assert [record.load_ns for record in recorder.requests] == [130, 260]
    assert ttfts(recorder) == [260 + BASE_NS + 2 * TOKEN_NS] * 2
    assert recorder.load_ns == 260


def lookup(tiers, where, **options):
    """Look prompt A up, whose blocks lie in the tiers that ``where`` names."""
    (request,) = requests_of((A, [1]))
    by_name = {tier.name: tier for tier in tiers}
    for key, name in zip(request.content.block_keys(4).tolist(), where, strict=False):
        by_name[name].put(key)
    tiered = Tiered(
        make("vllm_v1", 3, 4, Clock()), tiers, "through", prefill_pricer(Cost()), **options
    )
    return tiered.match_prefix(sequence_of(request, 4))


def test_links_of_two_tiers_work_side_by_side():
    match = lookup([host(), ssd()], ["host", "ssd"])
    assert match.load == Load(4, 4, 0, 270)
    assert match.num_tokens == 8


def test_a_run_is_cut_where_the_rest_is_quicker_to_compute():
    # 80 + 1500 for the first block alone; 1070 + 1100 for both; 1900 for none.
    match = lookup([host(), ssd(ns_per_block=1000)], ["host", "ssd"])
    assert match.load == Load(4, 0, 4, 80)
    assert (match.num_tokens, match.num_hit_blocks) == (4, 0)


def test_a_run_ends_at_the_first_block_that_no_tier_has():
    (request,) = requests_of((A, [1]))
    tier = host()
    tier.put(request.content.block_keys(4)[1])
    tiered = Tiered(make("vllm_v1", 3, 4, Clock()), [tier], "through", prefill_pricer(Cost()))
    assert tiered.match_prefix(sequence_of(request, 4)).load is None


@pytest.mark.parametrize(("recomputes_last_block", "num_tokens"), [(True, 4), (False, 7)])
def test_the_last_token_is_computed_as_the_policy_does(recomputes_last_block, num_tokens):
    (request,) = requests_of((A[:8], [1]))
    tier = host()
    for key in request.content.block_keys(4).tolist():
        tier.put(key)
    tiered = Tiered(
        make("vllm_v0" if num_tokens == 7 else "vllm_v1", 5, 4, Clock()),
        [tier],
        "through",
        prefill_pricer(Cost()),
        recomputes_last_block=recomputes_last_block,
    )
    seq = sequence_of(request, 4)
    match = tiered.match_prefix(seq)
    assert match.load.num_host_tokens == match.num_tokens == num_tokens
    assert tiered.allocate(seq, match, 8 - num_tokens)
    assert len(tiered.block_table(seq)) == 2
    assert tier.num_blocks_read == -(-num_tokens // 4)


@pytest.mark.parametrize(("overlap", "ttft_ns"), [(False, HOST_NS + 200), (True, HOST_NS)])
def test_cache_management_may_overlap_with_loads_too(overlap, ttft_ns):
    class Overhead:
        def work_ns(self, work):
            return 200

    recorder = Recorder()
    engine = Engine(
        lambda clock: Tiered(
            make("vllm_v1", 3, 4, clock), [host()], "through", prefill_pricer(Cost())
        ),
        SchedulerConfig(),
        Cost(),
        recorder,
        overhead=Overhead(),
        overlap=overlap,
    )
    engine.run(requests_of((A, [1]), (B, [1]), (A, [1]), arrivals_ns=[0, 10_000, 20_000]))
    assert ttfts(recorder)[2] == ttft_ns


def test_a_cost_by_sequences_is_asked_about_one_alone():
    class BySequences:
        def sequences_ns(self, scheduled):
            ((seq, num_new_tokens),) = scheduled
            return 10 * num_new_tokens + seq.num_computed_tokens

    (request,) = requests_of((A, [1]))
    seq = sequence_of(request, 4)
    assert prefill_pricer(BySequences())(seq, 3, 6) == 36
    assert seq.num_computed_tokens == 0


# Where copies go.


def test_writing_through_and_on_eviction_write_at_other_times():
    through, evict = host(), host()
    serve(A, B, tiers=[through])
    serve(A, B, tiers=[evict], write="evict")
    assert (through.num_blocks_written, evict.num_blocks_written) == (4, 2)
    (a1, a2), (b1, b2) = (r.content.block_keys(4) for r in requests_of((A, [1]), (B, [1])))
    assert through.keys() == [a2, a1, b2, b1]
    assert evict.keys() == [a2, a1]


def test_a_small_tier_holds_the_latest_or_what_was_lost():
    through, evict = host(num_blocks=2), host(num_blocks=2)
    assert told(serve(A, B, A, tiers=[through]))[2] == (0, 0, 0)
    assert told(serve(A, B, A, tiers=[evict], write="evict"))[2] == (8, 0, 0)


def test_what_host_memory_lost_is_loaded_from_the_ssd_and_promoted():
    tiers = [host(num_blocks=4), ssd()]
    recorder = serve(A, B, C, D, A, E, A, tiers=tiers, write="evict")
    assert told(recorder) == [(0, 0, 0)] * 4 + [(0, 8, 0), (0, 0, 0), (8, 0, 0)]
    assert ttfts(recorder)[4:] == [70 + 2 * 200 + 1100, COMPUTED_NS, HOST_NS]
    # Lost by the GPU: A, B, C, D, A again (it was there), E; promoted: A.
    assert tiers[0].num_blocks_written == 2 * 6
    # Lost by host memory: A, B, C, D.
    assert tiers[1].num_blocks_written == 2 * 4
    assert [tier.num_blocks_read for tier in tiers] == [2, 2]


def test_writing_through_writes_every_tier():
    tiers = [host(num_blocks=2), ssd()]
    recorder = serve(A, B, A, tiers=tiers)
    assert told(recorder)[2] == (0, 8, 0)
    assert [tier.num_blocks_written for tier in tiers] == [6, 4]  # A was promoted


def test_an_ssd_may_stand_behind_the_gpu_alone():
    recorder = serve(A, B, A, tiers=[ssd()], write="evict")
    assert told(recorder)[2] == (0, 8, 0)


def test_the_head_of_a_prefix_outlives_its_continuations():
    tier = host(num_blocks=3)
    recorder = serve(A, B, A, tiers=[tier])
    # B drove out the second block of A, not the first.
    assert told(recorder)[2] == (4, 0, 0)


def test_blocks_of_a_request_that_ends_are_the_last_to_go():
    tier = host(num_blocks=4)
    # A is hit in the GPU and not loaded: the tier must know all the same that it was used.
    recorder = serve(A, B, A, C, A, tiers=[tier], num_blocks=6)
    assert recorder.requests[2].num_cached_tokens == 8
    assert tier.keys()[-2:] == keys(A)[::-1]


def test_decoded_blocks_are_written_once_they_are_full():
    tier = host()
    (request,) = requests_of((A, list(range(60, 68))))
    recorder = Recorder()
    tiered = Tiered(make("vllm_v1", 10, 4, Clock()), [tier], "through", prefill_pricer(Cost()))
    Engine(lambda _: tiered, SchedulerConfig(), Cost(), recorder).run([request])
    # 9 + 8 tokens, the last of which is never computed.
    assert tier.keys() == request.content.block_keys(4).tolist()[3::-1]


def test_a_request_that_comes_back_loads_what_it_lost():
    # Two requests of 9 + 12 tokens in six blocks: one is preempted, and the other takes of its own.
    tier = host()
    rows = [(A, list(range(60, 72))), (B, list(range(80, 92)))]
    recorder = Recorder()
    tiered = Tiered(make("vllm_v1", 6, 4, Clock()), [tier], "through", prefill_pricer(Cost()))
    Engine(lambda _: tiered, SchedulerConfig(), Cost(), recorder).run(requests_of(*rows))
    assert recorder.num_preemptions == 1
    assert tier.num_blocks_read > 0
    assert told(recorder) == [(0, 0, 0)] * 2  # no hit at first admission
