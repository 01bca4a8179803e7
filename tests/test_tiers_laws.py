"""Laws of tiers behind every policy that caches."""

import pytest
from helpers import Clock, make, policy_cases, requests_of, serve_in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

import policies
from sim.engine import Engine
from sim.recorder import Recorder
from sim.scheduler import SchedulerConfig
from sim.tiers import Tier, Tiered, prefill_pricer
from sim.types import CacheWork, TellsEvictions
from workloads import infinite_hit_rate

BLOCK_SIZE, NUM_BLOCKS = 2, 12
CASES = [
    pytest.param(name, args, id=case_id)
    for case_id, name, args, _ in policy_cases()
    if name != "none"
]
every_policy = pytest.mark.parametrize(("policy", "args"), CASES)
a_few = settings(max_examples=25)
"""Every law is tried on some thirty policies."""

# A prompt is a path of segments, so that prompts share prefixes; outputs repeat what prompts hold.
SEGMENTS = ([1, 2, 3], [4, 5, 6, 7], [8, 9])
prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 4)),
    min_size=1,
    max_size=12,
)
capacities = st.integers(1, 20)
writes = st.sampled_from(["through", "evict"])


def requests_for(paths, gap_ns=0):
    rows = [
        ([token for index in path for token in SEGMENTS[index]], SEGMENTS[1][:num_output_tokens])
        for path, num_output_tokens in paths
    ]
    return requests_of(*rows, arrivals_ns=[gap_ns * index for index in range(len(rows))])


class Cost:
    def step_ns(self, batch):
        return 1000 + 100 * batch.num_new_tokens


class CheckedTier(Tier):
    """A tier that never holds more than it may."""

    def put(self, key):
        victim = super().put(key)
        assert len(self) <= self.num_blocks
        assert key in self
        return victim


def tiers_of(*num_blocks, ns_per_block=0.0):
    names = ("host", "ssd")[: len(num_blocks)]
    return [CheckedTier(*pair, ns_per_block, 0) for pair in zip(names, num_blocks, strict=True)]


def tiered_of(policy, args, tiers, write, clock):
    """Put tiers behind a policy; loads are quicker than computing unless a tier says otherwise."""
    return Tiered(
        make(policy, NUM_BLOCKS, BLOCK_SIZE, clock, **args),
        tiers,
        write,
        prefill_pricer(Cost()),
        recomputes_last_block=recomputes(policy),
    )


def recomputes(policy):
    return getattr(policies.load(policy), "recomputes_last_block", True)


def test_every_policy_that_caches_tells_its_evictions():
    without = [name for name in policies.names() if name != "none" and not tells(name)]
    assert without == []


def tells(name):
    return isinstance(policies.load(name), TellsEvictions)


@every_policy
@a_few
@given(paths=prompts, host=capacities)
def test_an_infinite_tier_that_is_written_through_loses_nothing(policy, args, paths, host):
    requests = requests_for(paths)
    clock = Clock()
    best = infinite_hit_rate(
        requests, BLOCK_SIZE, outputs=True, recomputes_last_block=recomputes(policy)
    )
    num_prompt_tokens = sum(request.num_prompt_tokens for request in requests)
    for tiers in (tiers_of(1000), tiers_of(host, 1000)):
        cached = serve_in_turn(tiered_of(policy, args, tiers, "through", clock), requests, clock)
        assert sum(cached) == pytest.approx(best * num_prompt_tokens)


@every_policy
@a_few
@given(paths=prompts, host=capacities, write=writes)
def test_served_in_turn_the_gpu_hits_the_same_with_tiers(policy, args, paths, host, write):
    """A block that is loaded takes the place of the same block computed."""
    requests = requests_for(paths)
    clock = Clock()
    alone = serve_in_turn(make(policy, NUM_BLOCKS, BLOCK_SIZE, clock, **args), requests, clock)
    watched = []

    class Watched(Tiered):
        def allocate(self, seq, match, num_tokens):
            if seq.num_cached_tokens < 0:
                watched.append(match.num_tokens - (match.load.num_tokens if match.load else 0))
            return super().allocate(seq, match, num_tokens)

    clock = Clock()
    tiered = Watched(
        make(policy, NUM_BLOCKS, BLOCK_SIZE, clock, **args),
        tiers_of(host),
        write,
        prefill_pricer(Cost()),
        recomputes_last_block=recomputes(policy),
    )
    total = serve_in_turn(tiered, requests, clock)
    assert watched == alone
    assert all(both >= gpu for both, gpu in zip(total, alone, strict=True))


@every_policy
@a_few
@given(paths=prompts)
def test_what_the_gpu_evicts_is_in_an_infinite_tier_and_nothing_else(policy, args, paths):
    requests = requests_for(paths)
    clock = Clock()
    (tier,) = tiers = tiers_of(1000)
    tiered = tiered_of(policy, args, tiers, "evict", clock)
    serve_in_turn(tiered, requests, clock)
    computed = {
        key
        for request in requests
        for key in request.content.block_keys(BLOCK_SIZE)[: request.num_kv_tokens // BLOCK_SIZE]
    }
    assert set(tier.keys()) <= computed
    # A cached key has at least one block, and what is neither in the GPU nor below it is lost.
    assert len(computed) <= len(set(tier.keys())) + tiered.usage().cached
    assert tier.num_blocks_written == len(tier)


def run(policy, args, tiers, write, requests, **limits):
    recorder = Recorder(keep_steps=True)
    works = []

    engine = Engine(
        lambda clock: (
            tiered_of(policy, args, tiers, write, clock)
            if tiers
            else make(policy, NUM_BLOCKS, BLOCK_SIZE, clock, **args)
        ),
        SchedulerConfig(**limits),
        Cost(),
        recorder,
        on_step=lambda _, step, __: works.append(step.work),
    )
    engine.run(requests)
    assert not engine.scheduler.has_work()
    assert engine.allocator.usage().used == 0
    return recorder, works


@every_policy
@a_few
@given(
    paths=prompts,
    sizes=st.lists(capacities, min_size=1, max_size=2),
    how=st.tuples(writes, st.sampled_from([0.0, 150.0])),
)
def test_tokens_of_all_tiers_are_those_of_the_prompt_at_most(policy, args, paths, sizes, how):
    requests = requests_for(paths, gap_ns=700)
    write, ns_per_block = how
    runs = [
        run(policy, args, tiers_of(*sizes, ns_per_block=ns_per_block), write, requests)[0]
        for _ in range(2)
    ]
    assert runs[0].requests == runs[1].requests
    assert runs[0].steps == runs[1].steps
    for record in runs[0].requests:
        if record.rejection:
            continue
        loaded = record.num_host_tokens + record.num_ssd_tokens
        assert 0 <= loaded <= record.num_cached_tokens
        found = record.num_cached_tokens + record.num_recomputed_tokens
        assert found < record.request.num_prompt_tokens
        assert record.load_ns >= 0
        assert (record.load_ns > 0) <= (loaded > 0)


@every_policy
@a_few
@given(paths=prompts, host=capacities, write=writes)
def test_a_loaded_block_is_managed_as_a_computed_one(policy, args, paths, host, write):
    """Served in turn, the work of cache management is the same with and without tiers."""
    requests = requests_for(paths)
    _, alone = run(policy, args, [], write, requests, max_num_seqs=1)
    _, below = run(policy, args, tiers_of(host), write, requests, max_num_seqs=1)
    assert [counted(work) for work in alone] == [counted(work) for work in below]


def counted(work):
    return {name: getattr(work, name) for name in CacheWork.__slots__}
