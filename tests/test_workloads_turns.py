"""Turns of sessions, read and counted by a plain twin that keeps every token of every stream."""

import itertools
import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import UsageError
from workloads import describe, read, shared_prefix_tokens, write_trace
from workloads.tree import Names, PrefixTree


@dataclass
class Row:
    """A row of a made-up trace; times are not those of the lines."""

    ids: list[int] | None
    num_missing: int
    answer: int | list[int]
    session: int | None
    says: str | None = None
    parent: int = 0  # for Bailian: how far back in the session
    # What the twin finds.
    prompt: list[object] = field(default_factory=list)
    stream: list[object] = field(default_factory=list)
    blocks: list[tuple[object, int]] = field(default_factory=list)  # id or mark, and tokens
    before: int | None = None
    appended: bool = False
    continues: bool = False

    @property
    def num_answer_tokens(self):
        return self.answer if isinstance(self.answer, int) else len(self.answer)


@dataclass(frozen=True)
class Trace:
    form: str
    unit: int
    rows: list[Row]  # in order of arrival
    order: list[int]  # of the lines
    options: dict[str, object]

    @property
    def workload(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.jsonl"
            path.write_text("".join(json.dumps(self.line(i)) + "\n" for i in self.order))
            unit = None if self.form == "tokens" else self.unit
            return read(path, self.form, trace_block_size=unit, **self.options)

    def line(self, index):
        row = self.rows[index]
        line = {"timestamp": index * (1 if self.form == "bailian" else 1000)}
        if self.form == "tokens":
            line["token_ids"] = row.ids
        else:
            line["input_length"] = num_prompt_tokens(row, self.unit)
            if row.ids is not None:
                line["hash_ids"] = row.ids
        if isinstance(row.answer, int):
            line["output_length"] = row.answer
        else:
            line["output_token_ids"] = row.answer
        if self.form == "bailian":
            line |= {"chat_id": index, "parent_chat_id": -1}
            if (parent := self.before(index)) is not None:
                line["parent_chat_id"] = parent
        elif row.session is not None:
            line["session_id"] = row.session
        if row.says is not None:
            line["turns"] = row.says
        return line

    def before(self, index):
        row = self.rows[index]
        if row.session is None:
            return None
        earlier = [i for i in range(index) if self.rows[i].session == row.session]
        back = row.parent if self.form == "bailian" else 0
        return earlier[-1 - min(back, len(earlier) - 1)] if earlier else None


def num_prompt_tokens(row, unit):
    return 5 if row.ids is None else len(row.ids) * unit - row.num_missing


def common(one, other):
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def told(trace):
    """Tell what every stream is, one token after the other."""
    unit, form = trace.unit, trace.options.get("turns")
    rows = [replace(row, before=trace.before(i)) for i, row in enumerate(trace.rows)]
    for index, row in enumerate(rows):
        length = num_prompt_tokens(row, unit)
        if row.ids is None:
            row.prompt = [("unknown", index, i) for i in range(length)]
            row.blocks = [(("unknown", index, i), min(unit, length - i))
                          for i in range(0, length, unit)]  # fmt: skip
        else:
            row.prompt = [(name, i) for name in row.ids for i in range(unit)][:length]
            row.blocks = [(name, min(unit, length - i * unit)) for i, name in enumerate(row.ids)]
        row.stream = row.prompt + answer_of(rows, index)
    pairs = [(row, rows[row.before]) for row in rows if row.before is not None]

    def full_of(last):
        return 0 if last.ids is None else num_prompt_tokens(last, unit) // unit * unit

    can_tell = [
        (turn, last)
        for turn, last in pairs
        if not (form or turn.says) and turn.ids is not None and full_of(last)
    ]
    begins = [2 * common(turn.prompt, last.prompt[: full_of(last)]) >= full_of(last)
              for turn, last in can_tell]  # fmt: skip
    untold = "cumulative" if trace.form == "bailian" else "separate"
    of_all = untold if not can_tell else "cumulative" if any(begins) else "delta"
    for index, row in enumerate(rows):
        if row.before is None:
            continue
        last = rows[row.before]
        if (form or row.says or of_all) == "delta":
            answers = [(("answer", row.before, i), min(unit, last.num_answer_tokens - i))
                       for i in range(0, last.num_answer_tokens, unit)]  # fmt: skip
            row.blocks = last.blocks + answers + row.blocks
            row.prompt = last.stream + row.prompt
            row.stream = row.prompt + answer_of(rows, index)
            row.appended = True
        elif (
            (form or row.says or of_all) == "cumulative"
            and isinstance(last.answer, int)
            and None not in (row.ids, last.ids)
        ):
            full = min(full_of(last), len(last.prompt) // unit * unit)
            full_of_prompt = len(last.prompt) // unit * unit
            row.continues = min(common(row.prompt, last.stream), full) >= full_of_prompt
    return rows


def answer_of(rows, index):
    answer = rows[index].answer
    if isinstance(answer, int):
        return [("answer", index, i) for i in range(answer)]
    return [(name, 0) for name in answer]


def assumed(trace, rows):
    """Put back what ids hide, see `workloads.within_blocks`."""
    unit, system = trace.unit, trace.options.get("system_prompt", 0)
    share = trace.options.get("partial_blocks") == "shared"
    named, partials, own = {}, {}, {}
    for index, row in enumerate(rows):
        limit = system
        if row.appended:
            chain, at = index, None
            while rows[chain].appended:
                chain = rows[chain].before
                at = len(rows[chain].prompt) if rows[chain].num_answer_tokens else at
            limit = system if at is None else min(system, at)
        prompt, start = [], 0
        for number, (name, length) in enumerate(row.blocks):
            after = tuple(row.blocks[:number])
            key = (after, name)
            mine = row.prompt[start : start + length]
            if isinstance(name, int):
                mine = [(name, i) for i in range(unit)]
            can = share and start > 0 and start >= limit
            if key not in named:
                head = []
                if start < limit:
                    head = [("system", i) for i in range(start, min(limit, start + len(mine)))]
                elif can and isinstance(name, int):
                    known = own.get(row.before) if row.continues else None
                    candidates = partials.get(after, []) + [known] * (
                        known is not None and known[0][0] == after
                    )
                    found = [p for p in candidates if p[1] < length][-1:]
                    head = named[found[0][0]][: found[0][1]] if found else []
                named[key] = head + [(key, i) for i in range(len(head), len(mine))]
            prompt += named[key][:length]
            if number == len(row.blocks) - 1 and length < unit:
                own[index] = (key, length)
                if can:
                    partials.setdefault(after, []).append((key, length))
            start += length
        # Answers are named as blocks of later turns name them.
        answers = []
        for i in range(0, row.num_answer_tokens, unit):
            length = min(unit, row.num_answer_tokens - i)
            key = ((*row.blocks, *answers), ("answer", index, i))
            named[key] = [(key, k) for k in range(length)]
            prompt += named[key]
            answers.append((("answer", index, i), length))
        row.stream, row.prompt = prompt, prompt[:start]


def linked(rows):
    for row in reversed(rows):
        last = rows[row.before] if row.continues else None
        shown = last is not None and last.num_answer_tokens > 0
        if shown and len(last.stream) <= len(row.prompt):
            last.stream = row.stream[: len(last.stream)]
    for row in rows:
        row.prompt = row.stream[: len(row.prompt)]


def counted(trace, block_size):
    """Count figures of `describe` token by token."""
    rows = told(trace)
    prompts = [list(row.blocks) for row in rows]
    if {"system_prompt", "partial_blocks"} & set(trace.options):
        assumed(trace, rows)
    linked(rows)
    total = sum(len(row.prompt) for row in rows)
    figures = {"prompt_tokens_total": total}
    for name, outputs in (("infinite_hit_rate", False), ("infinite_hit_rate_with_outputs", True)):
        hit, seen = 0, []
        for row in rows:
            shared = max((common(row.prompt, other) for other in seen), default=0)
            hit += min(shared, len(row.prompt) - 1) // block_size * block_size
            kept = max(row.num_answer_tokens - 1, 0) if outputs else 0
            seen.append(row.stream[: len(row.prompt) + kept])
        figures[name] = hit / total
    if {"system_prompt", "partial_blocks"} & set(trace.options):
        return figures
    num_hit, num_hit_tokens, chains = 0, 0, set()
    for blocks in prompts:
        keys = [(tuple(blocks[:i]), name) for i, (name, _) in enumerate(blocks)]
        hits = list(itertools.takewhile(chains.__contains__, keys))
        num_hit += len(hits)
        num_hit_tokens += sum(length for _, length in blocks[: len(hits)])
        chains.update(keys)
    num_blocks = sum(map(len, prompts))
    figures["infinite_hit_rate_partial"] = num_hit_tokens / total
    figures["identity_block_hit_rate"] = num_hit / num_blocks
    figures["num_distinct_identity_blocks"] = num_blocks - num_hit
    return figures


@st.composite
def traces(draw):
    form = draw(st.sampled_from(["mooncake", "bailian", "tokens"]))
    unit = 1 if form == "tokens" else draw(st.integers(2, 4))
    histories: dict[object, list[int]] = {}
    rows = []
    fresh = itertools.count(10)
    for _ in range(draw(st.integers(1, 7))):
        session = draw(st.sampled_from([None, "s", "t"]))
        history = histories.get(session, [])
        kept = draw(st.sampled_from([len(history), len(history), 0, 1]))
        new = draw(st.lists(st.sampled_from([0, 1, 2, -1]), min_size=1, max_size=4))
        ids = [*history[:kept], *(next(fresh) if name < 0 else name for name in new)]
        if form != "tokens" and draw(st.integers(0, 5)) == 0:
            ids = None
        missing = draw(st.integers(0, unit - 1))
        answer = draw(st.integers(0, 2 * unit + 1))
        if form == "tokens" and draw(st.booleans()):
            answer = draw(st.lists(st.integers(0, 2), max_size=3))
        says = draw(st.sampled_from([None, None, None, None, "cumulative", "delta", "separate"]))
        rows.append(Row(ids, missing, answer, session, says, draw(st.integers(0, 1))))
        if ids is not None:
            # A partial block's id is not seen again, mostly.
            histories[session] = ids[: len(ids) - (missing > 0 and draw(st.integers(0, 3)) > 0)]
    if draw(st.booleans()):
        rows = [replace(row, says=None) for row in rows]
    options = {}
    if turns := draw(st.sampled_from([None, "cumulative", "delta"])):
        options["turns"] = turns
    if form != "tokens":
        if draw(st.booleans()):
            options["system_prompt"] = draw(st.integers(1, 3 * unit))
        if draw(st.booleans()):
            options["partial_blocks"] = "shared"
    order = draw(st.permutations(range(len(rows))))
    return Trace(form, unit, rows, order, options)


@given(traces(), st.integers(1, 5))
@settings(deadline=None)
def test_figures_are_those_of_a_plain_count(trace, block_size):
    found = describe(trace.workload, block_size)
    expected = counted(trace, block_size)
    if not found["has_prefix_info"]:
        assert found["prompt_tokens_total"] == expected["prompt_tokens_total"]
        return
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    # The same once requests are no longer in columns.
    workload = trace.workload
    apart = describe(replace(workload, requests=tuple(workload.requests)), block_size)
    assert apart == found


# Worked by hand.


@pytest.fixture
def save(tmp_path):
    def save(*rows, name="trace.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return save


def mooncake(at, length, answer, ids=None, session="s"):
    row = {"timestamp": at, "input_length": length, "output_length": answer, "hash_ids": ids,
           "session_id": session}  # fmt: skip
    return {name: value for name, value in row.items() if value is not None}


CONTINUED = (mooncake(0, 1024, 513, [1, 2]), mooncake(9000, 2048, 10, [1, 2, 3, 4]))
DELTAS = (mooncake(0, 1024, 512, [1, 2]), mooncake(9000, 512, 10, [3]))


def test_a_delta_goes_on_inside_what_another_request_had(save):
    whole = {"timestamp": 0, "token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "output_token_ids": [9]}
    turns = [
        {"timestamp": 10_000, "token_ids": [1, 2], "output_token_ids": [3], "session_id": "s"},
        {"timestamp": 20_000, "token_ids": [4, 5, 6, 7, 8], "output_token_ids": [9],
         "session_id": "s"},
    ]  # fmt: skip
    figures = describe(read(save(whole, *turns), turns="delta"), 1)
    # Of 8 + 2 + 8 prompt tokens 1 and 7 are hit: never the last of a prompt.
    assert figures["infinite_hit_rate"] == 8 / 18
    assert figures["num_distinct_prompt_blocks"] == 8


@pytest.mark.parametrize("compiled", [False, True])
def test_a_tree_goes_on_inside_a_segment(compiled):
    names = Names()
    tree = PrefixTree(names, 10, compile_from=1 if compiled else 100)
    root = tree.root()
    ids = np.array([5, 6, 7, 8], dtype=np.int64)
    tree.insert_many(
        ids,
        np.array([4]),
        root,
        num_prompt_tokens=np.array([40]),
        num_output_tokens=np.array([0]),
    )
    assert tree.extend([1], [20], ids[2:]) == ([1], [40])
    assert tree.extend([1], [20], np.array([7, 9])) == ([1, 41], [30, 40])
    assert tree.extend([1], [20], np.array([7, 9])) == ([1, 41], [30, 40])
    assert tree.extend([1], [15], ids[2:3]) == ([1, 51], [15, 25]), "inside an id"
    assert names.take(5) == 61
    assert tree.extend([1, 61], [20, 25], ids[2:3]) == ([1, 61, 66], [20, 25, 35]), "an answer"
    assert tree.ids_of([1, 41], [30, 40], 4).tolist() == [5, 6, 7, 9]
    assert tree.ids_of([1], [35], 3).tolist() == [5, 6, 7]
    used = [(np.array([1, 41, 1000]), np.array([30, 10, 7]))]
    assert tree.num_ids_after_several_prefixes() == 1, (
        "7 stands inside an id and behind an answer too"
    )
    assert tree.num_ids_after_several_prefixes(used) == 0


tree_steps = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.lists(st.integers(0, 2), max_size=5)),
    min_size=1,
    max_size=12,
)


@given(tree_steps, st.integers(1, 3))
@settings(deadline=None)
def test_both_forms_of_a_tree_give_the_same_names(steps, unit):
    plain, compiled = (PrefixTree(Names(), unit, compile_from=size) for size in (100, 1))
    one = np.array([1], dtype=np.int64)
    roots = [tree.root() for tree in (plain, compiled)]
    for tree, root in zip((plain, compiled), roots, strict=True):
        tree.insert_many(one, one, root, num_prompt_tokens=one * unit, num_output_tokens=one * 0)
    paths = [([1], [unit])]
    for which, kept, ids in steps:
        bases, ends = paths[which % len(paths)]
        stop = 1 + kept % ends[-1]
        count = sum(end < stop for end in ends) + 1
        at = bases[:count], [*ends[: count - 1], stop]
        found = [tree.extend(*at, np.array(ids, np.int64)) for tree in (plain, compiled)]
        assert found[0] == found[1]
        paths.append(found[0])
        assert plain._names.next == compiled._names.next
    used = [(np.array(b[0]), np.array(e[0])) for b, e in paths]
    assert plain.num_ids_after_several_prefixes(used) == compiled.num_ids_after_several_prefixes(
        used
    )


@pytest.mark.parametrize("options", [{}, {"system_prompt": 512}, {"partial_blocks": "shared"}])
def test_assumptions_within_blocks_leave_sessions_alone(save, options):
    figures = describe(read(save(*DELTAS), turns="delta", **options), 512)
    # The second prompt is 1024 + 512 + 512 tokens, of which the first 1024 are those of the first.
    assert figures["prompt_tokens_total"] == 3072
    assert figures["infinite_hit_rate"] == 1024 / 3072
    for lines in (CONTINUED, CONTINUED[::-1]):
        figures = describe(read(save(*lines), turns="cumulative", **options), 512)
        # 512 of the 513 tokens of the answer are fed back, which makes a third block.
        assert figures["infinite_hit_rate_with_outputs"] == 1536 / 3072


def test_rows_without_ids_do_not_tell_their_form(save, tmp_path):
    path = save(mooncake(0, 1000, 100), mooncake(9000, 1200, 100))
    workload = read(path)
    assert [request.num_prompt_tokens for request in workload.requests] == [1000, 1200]
    assert not any("delta" in warning for warning in workload.warnings)
    burst = tmp_path / "burst.csv"
    burst.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n5,1,1,ChatGPT,1000,100,1100,Conversation log\n"
        "45,1,1,ChatGPT,1200,100,1300,Conversation log\n"
    )
    written = tmp_path / "written.jsonl"
    assert write_trace(read(burst), written) == ()
    again = read(written)
    assert [request.num_prompt_tokens for request in again.requests] == [1000, 1200]
    assert not again.has_prefix_info
    with pytest.raises(UsageError, match=r"--to tokens .* says nothing about the tokens"):
        write_trace(read(burst), written, "tokens")


def test_mooncakes_convention_counts_ids_of_prompts_alone(save):
    rows = [mooncake(0, 700, 100, [1, 2]), mooncake(9000, 1200, 10, [1, 3, 4])]
    figures = describe(read(save(*rows)), 512)
    # Of the ids 1, 2, 1, 3, 4 the second 1 is hit.
    assert figures["infinite_hit_rate_partial"] == 512 / 1900
    assert figures["identity_block_hit_rate"] == 1 / 5
    assert figures["num_distinct_identity_blocks"] == 4
    chat = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 20,
            "output_length": 5, "hash_ids": [1, 2]}  # fmt: skip
    later = {**chat, "chat_id": 2, "parent_chat_id": 1, "timestamp": 9, "input_length": 40,
             "hash_ids": [1, 3, 4]}  # fmt: skip
    figures = describe(read(save(chat, later)), 16)
    assert figures["infinite_hit_rate_partial"] == 16 / 60


def test_a_turn_may_stand_before_the_one_it_continues(save):
    first = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 16,
             "output_length": 17, "hash_ids": [1]}  # fmt: skip
    second = {**first, "chat_id": 2, "parent_chat_id": 1, "timestamp": 9.0, "input_length": 48,
              "hash_ids": [1, 3, 4]}  # fmt: skip
    workload = read(save(second, first))
    figures = describe(workload, 16)
    assert figures["num_sessions"] == 1
    assert figures["infinite_hit_rate_with_outputs"] == 32 / 64
    assert not any("not in the trace" in warning for warning in workload.warnings)
    # One that also comes before it in time cannot continue it.
    workload = read(save({**second, "timestamp": 0.0}, {**first, "timestamp": 9.0}))
    assert describe(workload, 16)["num_sessions"] == 2
    assert "1 row that come before the turn before them" in workload.warnings[0]
    itself = read(save({**first, "parent_chat_id": 1}))
    assert "1 row that come before the turn before them" in itself.warnings[0]


@pytest.mark.parametrize("form", ["tokens", "mooncake", "bailian"])
def test_a_written_trace_says_its_form(save, tmp_path, form):
    rows = [
        {"timestamp": 0, "token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "output_length": 2,
         "session_id": "s"},
        {"timestamp": 9000, "token_ids": [11, 12, 13, 14], "output_length": 2, "session_id": "s"},
        {"timestamp": 19_000, "token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "output_length": 2},
    ]  # fmt: skip
    path = save(*rows)
    workload = read(path, turns="cumulative")
    written = tmp_path / "written.jsonl"
    write_trace(workload, written, form, trace_block_size=1)
    again = read(written, form, trace_block_size=None if form == "tokens" else 1)
    assert [request.num_prompt_tokens for request in again.requests] == [8, 4, 8]
    assert describe(again, 1)["infinite_hit_rate"] == 7 / 20
    assert "(delta)" in read(path).warnings[0], "as the trace does not say it"
    marked = [{**row, "turns": "delta"} if row["timestamp"] == 9000 else row for row in rows]
    assert [r.num_prompt_tokens for r in read(save(*marked)).requests] == [8, 14, 8]
    odd = [{**row, "turns": 7} for row in rows[:1]]
    assert len(read(save(*odd)).requests) == 1, "another tool's field"


def test_a_system_prompt_reaches_rows_without_ids(save):
    rows = [mooncake(i * 9000, 600, 1, ids, None) for i, ids in enumerate(
        [None, None, [1, 2], [3, 4]])]  # fmt: skip
    figures = describe(read(save(*rows), system_prompt=512), 512)
    assert figures["infinite_hit_rate"] == 3 * 512 / 2400
    workload = read(save(*rows[:2]), system_prompt=512)
    assert workload.has_prefix_info
    salted = [{**row, "cache_salt": salt} for row, salt in zip(rows, "abab", strict=True)]
    figures = describe(read(save(*salted), system_prompt=512), 512)
    assert figures["infinite_hit_rate"] == 2 * 512 / 2400, "a salt keeps system prompts apart"


def test_a_delta_does_not_make_its_ids_stand_twice(save):
    assert read(save(*DELTAS), turns="delta").warnings == ()
    third = mooncake(19_000, 512, 10, [1])
    (warning,) = read(save(*DELTAS, third), turns="delta").warnings
    assert "ids that follow more than one prefix: 1;" in warning


@given(traces())
@settings(deadline=None)
def test_assumptions_only_add_hits(trace):
    options = {name: value for name, value in trace.options.items() if name == "turns"}
    plain = replace(trace, options=options).workload
    for outputs in (False, True):
        fewer, more = (
            shared_prefix_tokens(workload.requests, outputs=outputs)
            for workload in (plain, trace.workload)
        )
        assert (fewer <= more).all()
