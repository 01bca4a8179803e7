"""The scheduler's rules on examples worked by hand. Blocks hold four tokens."""

import pytest
from helpers import make, requests_of, sequence_of

from sim.scheduler import Scheduler, SchedulerConfig
from workloads.content import Interner


class Bench:
    """A scheduler and its pool, with sequences named a, b, c, ... in order of arrival."""

    def __init__(self, policy="none", num_blocks=100, **limits):
        args = {"watermark": 0.0} if policy.startswith("vllm_v0") else {}
        self.allocator = make(policy, num_blocks, 4, **args)
        self.scheduler = Scheduler(SchedulerConfig(**limits), self.allocator)
        self.interner = Interner()
        self.names = {}

    def add(self, *rows):
        """Queue requests given as (prompt tokens or their number, number of output tokens)."""
        added = []
        for given, num_output_tokens in rows:
            name = "abcdefgh"[len(self.names)]
            own_tokens = 1000 * (len(self.names) + 1)
            is_number = isinstance(given, int)
            prompt = range(own_tokens, own_tokens + given) if is_number else given
            output = range(own_tokens + 500, own_tokens + 500 + num_output_tokens)
            (request,) = requests_of((prompt, output), names=[name], interner=self.interner)
            seq = self.names[name] = sequence_of(request, 4)
            self.scheduler.add(seq)
            added.append(seq)
        return added

    def step(self):
        step = self.scheduler.schedule()
        self.scheduler.complete(step)
        return step

    def steps(self, count):
        return [scheduled(self.step()) for _ in range(count)]


def scheduled(step):
    return {seq.request_id: num_tokens for seq, num_tokens in step.scheduled}


def names(sequences):
    return "".join(seq.request_id for seq in sequences)


def test_the_token_budget_is_shared_in_order():
    bench = Bench(max_num_batched_tokens=10)
    bench.add((6, 2), (8, 2), (3, 2))
    first = bench.step()
    assert scheduled(first) == {"a": 6, "b": 4}
    assert names(first.first_tokens) == "a"
    assert names(bench.scheduler.waiting) == "c"
    second = bench.step()
    assert scheduled(second) == {"a": 1, "b": 4, "c": 3}
    assert (names(second.first_tokens), names(second.finished)) == ("bc", "a")
    third = bench.step()
    assert scheduled(third) == {"b": 1, "c": 1}
    assert names(third.finished) == "bc"
    assert not bench.scheduler.has_work()
    assert bench.allocator.usage().used == 0


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    bench = Bench(max_num_batched_tokens=5)
    (a,) = bench.add((12, 3))
    chunks = [bench.step() for _ in range(5)]
    assert [scheduled(step) for step in chunks] == [{"a": n} for n in (5, 5, 2, 1, 1)]
    assert [names(step.first_tokens) for step in chunks] == ["", "", "a", "", ""]
    assert [names(step.finished) for step in chunks] == ["", "", "", "", "a"]
    # The last output token came out and was never fed back.
    assert (a.num_tokens, a.num_computed_tokens) == (15, 14)
    # Five tokens attend to 1..5 keys, the next five to 6..10, then 11, 12, 13 and 14.
    assert [step.batch.num_attended_pairs for step in chunks] == [15, 40, 23, 13, 14]
    assert [step.batch.num_context_tokens for step in chunks] == [5, 10, 12, 13, 14]


def test_chunks_take_blocks_as_they_come():
    bench = Bench("vllm_v1", max_num_batched_tokens=5)
    bench.add((12, 2))
    used = []
    for _ in range(4):
        step = bench.scheduler.schedule()
        used.append(bench.allocator.usage().used)
        bench.scheduler.complete(step)
    assert used == [2, 3, 3, 4]


def test_with_the_whole_prompt_reserved_nobody_is_admitted_for_a_chunk():
    # 8 blocks; a holds 4 and grows to 5, b needs 4 for its prompt and 1 for its first chunk.
    for reserve, admitted in ((False, "b"), (True, "")):
        bench = Bench("vllm_v1", 8, max_num_batched_tokens=20, reserve_full_prompt=reserve)
        bench.add((16, 4))
        bench.step()
        bench.add((16, 1))
        bench.scheduler.config = SchedulerConfig(
            max_num_batched_tokens=5, reserve_full_prompt=reserve
        )
        assert names(seq for seq, _ in bench.step().admitted) == admitted


def test_a_reserved_prompt_counts_its_hits_but_no_hit_as_free():
    # 6 blocks: a ends and leaves 3 cached ones, which are free as well.
    bench = Bench("vllm_v1", 6, max_num_batched_tokens=100, reserve_full_prompt=True)
    bench.add((range(12), 1))
    bench.step()
    # b hits two of them and needs three more: four are left beside the hits.
    bench.add((list(range(8)) + list(range(50, 62)), 1))
    assert scheduled(bench.step()) == {"b": 12}
    # c holds four blocks and d, whose prefix b left, needs three beside its two hits: none are.
    bench.add((16, 4), (list(range(8)) + list(range(70, 82)), 1))
    assert names(seq for seq, _ in bench.step().admitted) == "c"


def test_the_threshold_caps_each_sequence():
    bench = Bench(max_num_batched_tokens=100, long_prefill_token_threshold=4)
    bench.add((10, 1), (3, 1), (4, 1))
    steps = [bench.step() for _ in range(3)]
    assert [scheduled(step) for step in steps] == [{"a": 4, "b": 3, "c": 4}, {"a": 4}, {"a": 2}]
    assert [names(step.finished) for step in steps] == ["bc", "", "a"]


def test_the_threshold_counts_what_is_left_after_a_hit():
    bench = Bench("vllm_v1", long_prefill_token_threshold=4)
    bench.add((range(8), 1))
    assert bench.steps(2) == [{"a": 4}, {"a": 4}]
    bench.add((range(14), 1))
    step = bench.step()
    assert [(seq.request_id, hit) for seq, hit in step.admitted] == [("b", 8)]
    assert scheduled(step) == {"b": 4}
    # Four tokens attend to 9, 10, 11 and 12 keys.
    assert (step.batch.num_attended_pairs, step.batch.num_context_tokens) == (42, 12)
    assert bench.steps(1) == [{"b": 2}]


def test_no_more_than_max_num_seqs_run():
    bench = Bench(max_num_seqs=2)
    bench.add((4, 1), (4, 3), (4, 1))
    first = bench.step()
    assert scheduled(first) == {"a": 4, "b": 4}
    assert names(first.finished) == "a"
    assert names(bench.scheduler.running) == "b"
    second = bench.step()
    assert scheduled(second) == {"b": 1, "c": 4}
    assert second.admitted == [(bench.names["c"], 0)]


def test_running_sequences_are_served_before_waiting_ones():
    bench = Bench(max_num_batched_tokens=4)
    bench.add((4, 4))
    assert bench.steps(1) == [{"a": 4}]
    bench.add((10, 1))
    assert bench.steps(4) == [{"a": 1, "b": 3}] * 3 + [{"b": 1}]


def test_without_budget_left_running_sequences_wait_their_turn():
    bench = Bench(max_num_batched_tokens=2)
    bench.add((1, 4), (1, 4))
    assert bench.steps(1) == [{"a": 1, "b": 1}]
    bench.add((5, 1))
    # Two decodes use the budget up: c is not admitted until they are done.
    assert bench.steps(4) == [{"a": 1, "b": 1}] * 3 + [{"c": 2}]


def test_the_youngest_is_preempted_and_returns_to_the_head():
    bench = Bench(num_blocks=4)
    a, b = bench.add((8, 8), (8, 8))
    assert bench.steps(1) == [{"a": 8, "b": 8}]
    bench.add((4, 1))
    # Token 9 of a needs a third block, and there is none.
    step = bench.step()
    assert scheduled(step) == {"a": 1}
    assert names(step.preempted) == "b"
    assert (b.num_computed_tokens, b.num_tokens, b.num_preemptions) == (0, 9, 1)
    # b let go of two blocks and c needs but one; still nobody is admitted in such a step.
    assert bench.allocator.usage().free == 1
    assert step.admitted == []
    assert names(bench.scheduler.waiting) == "bc"
    # b needs three blocks for its nine tokens. c, behind it, does not pass it.
    assert bench.steps(6) == [{"a": 1}] * 6
    assert a.num_tokens == 16
    assert names(bench.scheduler.waiting) == "bc"
    # a has ended. b computes its prompt and its first output token again; c fits beside it.
    step = bench.step()
    assert scheduled(step) == {"b": 9, "c": 4}
    assert step.first_tokens == [bench.names["c"]]
    assert b.num_cached_tokens == 0
    assert bench.steps(6) == [{"b": 1}] * 6
    assert not bench.scheduler.has_work()


def test_a_sequence_that_is_itself_the_youngest_preempts_itself():
    bench = Bench(num_blocks=4)
    bench.add((5, 4), (8, 4))
    assert bench.steps(1) == [{"a": 5, "b": 8}]
    step = bench.step()
    assert scheduled(step) == {"a": 1}
    assert names(step.preempted) == "b"
    assert bench.allocator.usage().free == 2


def test_nobody_is_admitted_in_a_step_that_preempted():
    """Not even where there is room: the two blocks that b lets go of would hold its first chunk."""
    bench = Bench(num_blocks=4, long_prefill_token_threshold=4)
    bench.add((4, 6), (12, 1))
    assert bench.steps(2) == [{"a": 4, "b": 4}, {"a": 1, "b": 4}]
    step = bench.step()
    assert scheduled(step) == {"a": 1}
    assert names(step.preempted) == "b"
    assert bench.allocator.usage().free == 2
    assert bench.steps(1) == [{"a": 1, "b": 4}]


def test_several_are_preempted_youngest_first():
    bench = Bench(num_blocks=4, long_prefill_token_threshold=8)
    bench.add((12, 1), (4, 8), (4, 8))
    assert bench.steps(1) == [{"a": 8, "b": 4, "c": 4}]
    bench.scheduler.config = SchedulerConfig()
    # a wants a third block: c gives one. b wants one for its fifth token: it gives its own.
    step = bench.step()
    assert scheduled(step) == {"a": 4}
    assert names(step.preempted) == "cb"
    assert names(bench.scheduler.waiting) == "bc"


def test_a_preempted_sequence_hits_its_own_blocks_on_return():
    bench = Bench("vllm_v1", num_blocks=5)
    _, b = bench.add((8, 2), (8, 4))
    assert bench.steps(1) == [{"a": 8, "b": 8}]
    step = bench.step()
    assert scheduled(step) == {"a": 1}
    assert (names(step.preempted), names(step.finished)) == ("b", "a")
    step = bench.step()
    assert step.admitted == [(b, 8)]
    assert scheduled(step) == {"b": 1}
    # The hit rate counts a request once, when it was admitted first.
    assert b.num_cached_tokens == 0


@pytest.mark.parametrize(
    ("policy", "num_cached", "num_computed"),
    [
        ("none", 0, 8),
        ("vllm_v1", 4, 4),
        ("vllm_v1_latest", 4, 4),
        ("vllm_v0", 7, 1),
        ("vllm_v0_scan", 4, 4),
    ],
)
def test_the_last_token_is_always_computed(policy, num_cached, num_computed):
    bench = Bench(policy)
    bench.add((range(8), 1))
    assert bench.steps(1) == [{"a": 8}]
    (b,) = bench.add((range(8), 1))
    step = bench.step()
    assert step.admitted == [(b, num_cached)]
    assert scheduled(step) == {"b": num_computed}
    assert names(step.first_tokens) == names(step.finished) == "b"


def test_output_of_0_and_of_1_tokens():
    bench = Bench()
    bench.add((6, 0), (6, 1), (6, 2))
    step = bench.step()
    assert scheduled(step) == {"a": 6, "b": 6, "c": 6}
    assert names(step.first_tokens) == "bc"
    assert names(step.finished) == "ab"
    step = bench.step()
    assert scheduled(step) == {"c": 1}
    assert (names(step.first_tokens), names(step.finished)) == ("", "c")


def test_requests_of_one_step_hit_each_other_in_v1_and_not_in_v0():
    for policy, expected in (("vllm_v1", {"a": 8, "b": 4}), ("vllm_v0", {"a": 8, "b": 8})):
        bench = Bench(policy)
        bench.add((range(8), 1), (range(8), 1))
        assert bench.steps(1) == [expected]


def test_vllms_own_counters_count_every_lookup():
    bench = Bench("vllm_v1", num_blocks=4)
    bench.add((range(8), 1))
    bench.step()
    bench.add((8, 4))
    bench.step()
    bench.add((range(16), 1))
    # b holds two blocks, then three; c, of four, is looked up in vain until b has ended.
    looks = []
    for _ in range(4):
        step = bench.step()
        looks.append((step.num_block_queries, step.num_block_hits))
    assert looks == [(3, 1), (3, 1), (3, 1), (3, 1)]
    assert bench.names["c"].num_cached_tokens == 4


def test_room_is_counted_without_the_last_output_token():
    bench = Bench(num_blocks=4)
    missing = bench.scheduler.num_missing_blocks
    fits, fits_not, no_output, needs_more = requests_of(
        (range(9), range(8)), (range(9), range(9)), (range(16), []), (range(30), [])
    )
    # 9 + 8 - 1 = 16 tokens, four blocks; one token more, five.
    assert [missing(r) for r in (fits, fits_not, no_output, needs_more)] == [0, 1, 0, 4]


def test_room_does_not_include_the_watermark():
    allocator = make("vllm_v0", 200, 4, watermark=0.01)
    scheduler = Scheduler(SchedulerConfig(), allocator)
    fits, fits_not = requests_of((range(198 * 4), []), (range(198 * 4 + 1), []))
    assert [scheduler.num_missing_blocks(request) for request in (fits, fits_not)] == [0, 1]
