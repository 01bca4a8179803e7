"""Runs told event by event: states as drawn in the article, and reasons that are true."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers import Clock, make
from hypothesis import given
from hypothesis import strategies as st

from sim.config import RunConfig
from sim.cost import LinearCost
from sim.engine import Engine
from sim.errors import UsageError
from sim.explain import Observer, Story
from sim.explain.page import frames, page
from sim.explained import tell, tell_request, write
from sim.recorder import Recorder
from sim.scheduler import SchedulerConfig
from sim.types import Request
from workloads.content import Interner, TokenIds


def told(*requests, policy="vllm_v1", num_blocks=10, block_size=4, limits=None, **args):
    """Tell requests of (arrival in ms, prompt, output); a step takes 1 ms."""
    interner = Interner()
    made = [
        Request(
            f"r{index}",
            arrival * 10**6,
            TokenIds(np.array([ord(letter) for letter in prompt + output]), interner),
            len(prompt),
            len(output),
        )
        for index, (arrival, prompt, output) in enumerate(requests)
    ]
    story = Story(policy, block_size, num_blocks)
    engine = Engine(
        lambda clock: Observer(
            make(policy, num_blocks, block_size, clock, **args), clock, story, letters=True
        ),
        SchedulerConfig(**(limits or {})),
        LinearCost(10**6, 0, 0),
        Recorder(),
    )
    engine.run(made)
    return story.moments


def state(moment):
    """Free queue, map, tables, and ref counts, as drawings have them."""
    return (
        [int(text) for text in moment.free["free queue"]],
        {label: ids[0] for label, ids in moment.cached.items()},
        {name: list(ids) for name, ids in moment.tables.items()},
        [len(slot.holders) for slot in moment.slots],
    )


def test_the_article_block_by_block():
    moments = tell(RunConfig(), example="article").moments
    assert [(m.event, m.request_id) for m in moments] == [
        ("admitted", "0"), ("grew", "0"), ("grew", "0"), ("admitted", "1"),
        ("ended", "0"), ("ended", "1"), ("admitted", "2"), ("ended", "2"),
    ]  # fmt: skip
    first = {"ABCD": 0, "EFGH": 1, "IJKL": 2}
    full = {**first, "MNOp": 3}
    both = {**full, "IJwx": 5}
    assert [state(moment) for moment in moments[:6]] == [
        ([4, 5, 6, 7, 8, 9], first, {"0": [0, 1, 2, 3]}, [1, 1, 1, 1] + [0] * 6),
        ([4, 5, 6, 7, 8, 9], full, {"0": [0, 1, 2, 3]}, [1, 1, 1, 1] + [0] * 6),
        ([5, 6, 7, 8, 9], full, {"0": [0, 1, 2, 3, 4]}, [1] * 5 + [0] * 5),
        (
            [7, 8, 9],
            both,
            {"0": [0, 1, 2, 3, 4], "1": [0, 1, 5, 6]},
            [2, 2, 1, 1, 1, 1, 1, 0, 0, 0],
        ),
        ([7, 8, 9, 4, 3, 2], both, {"1": [0, 1, 5, 6]}, [1, 1, 0, 0, 0, 1, 1, 0, 0, 0]),
        ([7, 8, 9, 4, 3, 2, 6, 5, 1, 0], both, {}, [0] * 10),
    ]
    last = moments[6]
    assert last.hit_blocks == (0, 1, 2)
    assert last.new_blocks == (7, 8, 9, 4, 3)
    assert last.evicted == ((3, "MNOp"),)
    assert state(last)[:2] == (
        [6, 5],
        {**first, "IJwx": 5, "abcd": 7, "efgh": 8, "ijkl": 9, "mnop": 4},
    )
    assert last.sentences == (
        "Hit 12 tokens in blocks 0, 1, 2 (3 filled by request 0).",
        "No request before had abcd after this prefix.",
        "Took blocks 7, 8, 9, 4, 3.",
        "Evicted MNOp (block 3): first in line among the free blocks.",
    )


def test_v0_hands_out_its_plain_free_list_before_it_evicts():
    moments = tell(RunConfig(policy="vllm_v0"), example="article").moments
    assert moments[4].free == {
        "free list, used up first": ["4", "7", "8", "9"],
        "free table": ["2 at 2 ms, 12 tokens", "3 at 2 ms, 16 tokens"],
        "heap": ["3 at 2 ms", "2 at 2 ms"],
    }
    # Blocks 0, 1 and 2 are hit: their entries in the heap go stale.
    assert moments[6].evicted == ()
    assert moments[6].free["heap"] == [
        "3 at 2 ms", "2 at 2 ms (stale)", "5 at 2 ms", "1 at 2 ms (stale)", "0 at 2 ms (stale)",
    ]  # fmt: skip


def reasons(moments, request_id):
    (admitted,) = [m for m in moments if m.event == "admitted" and m.request_id == request_id]
    return admitted.sentences


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ("ABCDEFGH", "EFGH is there too, but it holds the last token, which is always computed."),
        ("ABCDEFGHxy", "The last 2 tokens fill no block, and only full blocks are shared."),
        ("ABCDxyzw!", "No request before had xyzw after this prefix."),
    ],
)
def test_why_the_next_block_was_not_hit(second, reason):
    moments = told((0, "ABCDEFGH", "."), (5, second, "."))
    assert reason in reasons(moments, "r1")


def test_v0_computes_only_the_last_token_of_a_repeated_prompt():
    moments = told((0, "ABCDEFGH", "."), (5, "ABCDEFGH", "."), policy="vllm_v0", watermark=0.0)
    assert reasons(moments, "r1") == (
        "Hit 7 tokens in blocks 0, 1 (2 filled by request r0).",
        "All of its blocks are hit; its last token is computed again, for its logits.",
    )


def test_what_was_lost_names_the_request_that_took_it():
    moments = told(
        (0, "ABCDEFGHI", "."), (5, "0123456789abcdefg", "."), (10, "ABCDEFGHI", "."), num_blocks=5
    )
    # Three blocks, then five for 17 tokens: everything is taken.
    assert moments[2].evicted == ((2, "EFGH"), (1, "ABCD"))
    assert reasons(moments, "r2")[0] == (
        "ABCD was in block 1 until 5 ms, when the block was taken for request r1."
    )


def test_a_request_without_room_waits_and_is_told_once():
    moments = told((0, "ABCDEFGHI", "12345"), (0, "abcdefghijk", "."), num_blocks=5)
    refused = [m for m in moments if m.event == "refused"]
    assert [m.sentences for m in refused[:1]] == [("No room: it needs 3 more and 2 are free.",)]
    assert len([m for m in refused if m.time_ns <= 10**6]) == 1


def test_a_preempted_request_starts_again():
    moments = told((0, "ABCDEFGH", "1234567890"), (0, "abcdefgh", "1234567890"), num_blocks=6)
    events = [(m.event, m.request_id) for m in moments]
    assert ("preempted", "r1") in events
    assert events.count(("admitted", "r1")) == 2


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 30), st.text("AB", min_size=1, max_size=20), st.text("xy", max_size=6)
        ),
        min_size=1, max_size=8,
    ),
    policy=st.sampled_from(["none", "vllm_v0", "vllm_v0_scan", "vllm_v1", "vllm_v1_latest"]),
)  # fmt: skip
def test_a_story_is_true(rows, policy):
    rows = sorted(rows, key=lambda row: row[0])
    args = {"watermark": 0.0} if policy.startswith("vllm_v0") else {}
    moments = told(*rows, policy=policy, num_blocks=8, block_size=4, **args)
    label_of = {}
    for moment in moments:
        by_id = {slot.block_id: slot for slot in moment.slots}
        assert len(by_id) == 8
        for name, table in moment.tables.items():
            assert all(name in by_id[block_id].holders for block_id in table)
        held = sum(bool(slot.holders) for slot in moment.slots)
        free = [name for name in moment.free if not name.startswith("heap")]
        assert held + sum(len(moment.free[name]) for name in free) == 8
        for block_id, label in moment.evicted:
            assert label_of[block_id] == label
        label_of = {block_id: slot.label for block_id, slot in by_id.items() if slot.label}
    ended = [m.request_id for m in moments if m.event == "ended"]
    assert sorted(ended) == sorted(f"r{index}" for index in range(len(rows)))


def test_labels_of_tokens_that_are_no_letters():
    interner = Interner()
    tokens = TokenIds(np.arange(1000, 1010), interner)
    story = Story("vllm_v1", 4, 4)
    observer = Observer(make("vllm_v1", 4, 4, Clock()), Clock(), story)
    engine = Engine(lambda _: observer, SchedulerConfig(), LinearCost(1, 0, 0), Recorder())
    engine.run([Request("first", 0, tokens, 9, 1)])
    assert [slot.label for slot in story.moments[0].slots[:3]] == [
        "first[0:4]", "first[4:8]", "first[8:9]",
    ]  # fmt: skip


def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 * t, "input_length": 9, "output_length": 1, "hash_ids": ids}
        for t, ids in enumerate([[1, 2, 3], [4, 5, 6], [1, 2, 7]])
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return RunConfig(
        workload=str(path),
        trace_block_size=4,
        block_size=4,
        kv_capacity="4blocks",
        model="llama-3-8b",
    )


def test_one_request_of_a_run(tmp_path):
    config = trace(tmp_path)
    names = tell_request(config, "0")
    assert names[0].startswith("Request 0 was admitted at 0 ms with 9 tokens, 2 full blocks; 0 ")
    sentences = tell_request(config, "2")
    assert sentences[0].endswith("2 full blocks; 4 tokens were hit.")
    assert sentences[1] == "1 block filled by request 0 at 0 ms."
    assert re.fullmatch(
        r"1 block of the rest had been there and lost to request 1 at 1000(\.\d+)? ms.",
        sentences[-1],
    )
    with pytest.raises(
        UsageError, match="--request 'x' is not in the workload; its requests are 0"
    ):
        tell_request(config, "x")


def test_chunks_are_told_by_who_computed_them():
    """V0 takes blocks for the whole prompt at admission, whatever is computed then."""
    limits = {"max_num_batched_tokens": 4}
    requests = [(0, "ABCDEFGHIJKL", "."), (20, "ABCDEFGHIJKLMNOP", ".")]
    for policy, args in (("vllm_v0", {"watermark": 0.0}), ("vllm_v1", {})):
        moments = told(*requests, policy=policy, num_blocks=12, limits=limits, **args)
        assert reasons(moments, "r1")[:2] == (
            "Hit 12 tokens in blocks " + ("0, 1, 2" if policy == "vllm_v0" else "1, 2, 3")
            + " (3 filled by request r0).",
            "No request before had MNOP after this prefix.",
        )  # fmt: skip


def test_of_two_copies_the_first_is_hit_and_named():
    moments = told(
        (0, "ABCDEFGHIJKL", "."), (5, "ABCDEFGHIJKL", "."), (10, "ABCDEFGHIJKLMNOP", ".")
    )
    assert reasons(moments, "r2")[0] == "Hit 12 tokens in blocks 1, 2, 3 (3 filled by request r0)."


def test_what_another_is_about_to_compute():
    moments = told(
        (0, "ABCDEFGH!", "."), (0, "ABCDEFGH?", "."), limits={"long_prefill_token_threshold": 4}
    )
    assert reasons(moments, "r1")[1] == "EFGH is about to be computed for request r0."


def test_without_caching_nothing_is_cached_or_evicted():
    moments = told((0, "ABCDEFGH!", "."), (5, "ABCDEFGH!", "."), policy="none", num_blocks=4)
    assert reasons(moments, "r1")[0] == "Caching is off."
    assert not any("Evicted" in text for moment in moments for text in moment.sentences)


def test_v0_asks_for_room_as_though_nothing_were_hit():
    moments = told(
        (0, "ABCDEFGHIJKL", "12345"), (2, "ABCDEFGHIJKL!", "."),
        policy="vllm_v0", num_blocks=7, watermark=0.0,
    )  # fmt: skip
    (refused, *_) = [m for m in moments if m.event == "refused"]
    # Four blocks are held; of the four that it needs it would hit three.
    assert refused.sentences[-1] == (
        "No room: it asks for all 4 blocks of its prompt as though nothing were hit, and 3 are "
        "free."
    )


def test_a_rejected_request_is_told(tmp_path):
    config = replace(trace(tmp_path), kv_capacity="2blocks")
    moments = tell(config).moments
    assert [(m.event, m.request_id) for m in moments] == [("rejected", str(i)) for i in range(3)]
    assert moments[0].sentences == ("It needs 3 of 2 blocks, even if it were alone.",)


def test_a_pool_too_large_to_be_shown():
    with pytest.raises(UsageError, match="blocks, more than the 256 that can be shown"):
        tell(RunConfig())


def test_an_example_that_there_is_not():
    with pytest.raises(UsageError, match="--example 'novel' must be one of article"):
        tell(RunConfig(), example="novel")


def test_a_limit_ends_the_story():
    assert len(tell(RunConfig(), example="article", limit=3).moments) == 3


def test_stories_side_by_side_meet_in_time():
    v1, v0 = (tell(RunConfig(policy=name), example="article") for name in ("vllm_v1", "vllm_v0"))
    assert frames([v1, v0]) == [[index, index] for index in range(8)]
    short = Story("short", 4, 10, v1.moments[3:4])
    assert frames([v1, short])[:5] == [[0, -1], [1, -1], [2, -1], [3, 3], [4, 3]]


def test_a_page_needs_nothing_from_elsewhere(tmp_path):
    story = tell(RunConfig(), example="article")
    path = tmp_path / "page.html"
    write([story], path, "A </script> title", "prefixsim explain")
    text = path.read_text(encoding="utf-8")
    assert "http" not in text
    assert "A &lt;/script&gt; title" in text
    assert text.count("</script>") == 3
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    stories = json.loads(data[1])["stories"]
    assert stories[0]["moments"][6]["evicted"] == [[3, "MNOp"]]
    assert page([story], "t", "c") == page([story], "t", "c")


def test_a_storyboard_shows_every_moment(tmp_path):
    story = tell(RunConfig(), example="article")
    write([story], tmp_path / "board.svg", "title", "")
    text = (tmp_path / "board.svg").read_text()
    assert (tmp_path / "board.png").stat().st_size > 10_000
    for moment in story.moments:
        assert f"request {moment.request_id} {moment.event}" in text
    assert "7 ⇄ 8 ⇄ 9 ⇄ 4 ⇄ 3 ⇄ 2 ⇄ 6 ⇄ 5 ⇄ 1 ⇄ 0" in text
    assert "..." not in text
    with pytest.raises(UsageError, match="a storyboard shows at most 24 blocks and 40 events"):
        write([Story("x", 4, 99)], tmp_path / "x.png", "", "")


def test_a_long_free_table_is_drawn_whole(tmp_path):
    dials = {"prompt": 48, "output": 6, "num_prefixes": 2, "hit_rate": 0.3}
    story = tell(
        RunConfig(
            workload="shared-prefix",
            workload_args=dials,
            num_requests=7,
            policy="vllm_v0",
            kv_capacity="14blocks",
            block_size=8,
        )
    )
    longest = max((moment.free["free table"] for moment in story.moments), key=len)
    assert len(longest) >= 10
    write([story], tmp_path / "board.svg", "title", "")
    drawn = (tmp_path / "board.svg").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert all(entry in drawn for entry in longest)


def test_the_command_line(prefixsim, tmp_path):
    code, out, _ = prefixsim("explain", "--example", "article", "--policy", "vllm_v1,vllm_v0")
    assert code == 0
    assert "6 20 ms: request 2 admitted" in out
    assert "Evicted MNOp (block 3)" in out
    code, out, _ = prefixsim("explain", "--example", "article", "--json")
    assert json.loads(out)["stories"][0]["moments"][0]["new_blocks"] == [0, 1, 2, 3]
    _, out, _ = prefixsim("explain", "--example", "article", "--request", "2", "--json")
    assert json.loads(out)["vllm_v1"][1] == "3 blocks filled by request 0 at 0 ms."
    _, _, err = prefixsim("explain", "--example", "article", "--limit", "2")
    assert err == "prefixsim: these are the first 2 events; tell more with --limit N.\n"
    for args, sentence in (
        (["--example", "article", "trace.jsonl"], "so WORKLOAD has no effect; leave it out."),
        (["--example", "article", "--block-size", "8"], "so --block-size has no effect"),
        (["--example", "article", "--limit", "0"], "--limit 0 must be at least 1."),
        (["--example", "article", "--request", "1", "-o", "x.html"], "--request tells in words"),
        (["--example", "article", "--policy", "nope"], "--policy 'nope' is not a policy"),
        ([], "explain needs a WORKLOAD or --example article; give one."),
        (["--example", "article", "-o", "x.gif"], "-o x.gif must end in one of .html, .png"),
        (["--example", "article", "-o", "/nope/x.html"], "-o /nope/x.html cannot be written"),
    ):
        code, _, err = prefixsim("explain", *args)
        assert code == 2
        assert sentence in err
