"""Records small logs of our own policies: the fixtures in data/logs.

They test the format and its replay where the recordings of real engines are not at hand. Write them
anew with ``python tests/_record_logs.py``; a test compares them with what this makes.
"""

import json
from pathlib import Path

import numpy as np
from helpers import Clock, make, requests_of, sequence_of

from sim.cost import LinearCost
from sim.engine import Engine
from sim.recorder import Recorder
from sim.scheduler import Scheduler, SchedulerConfig
from sim.types import NO_MATCH, Request, Sequence
from workloads import load
from workloads.content import Interner, TokenIds

DATA = Path(__file__).parent / "data"
LOGS = DATA / "logs"
TRACE = DATA / "traces" / "tiny.jsonl"

VARIANTS = {
    "vllm_v1": "v1-0.8.5",
    "vllm_v1_latest": "v1-0.33",
    "vllm_v0": "v0-0.8.5",
    "vllm_v0_scan": "v0-0.6.4",
}


def allocator_log(policy):
    """Shared prefixes, a decode that opens a block, chunks, a refusal, evictions."""
    is_v1 = policy.startswith("vllm_v1")
    clock = Clock()
    pool = make(policy, 8, 4, clock, **({} if is_v1 else {"watermark": 0.0}))
    interner = Interner()
    tokens = {}
    live = {}
    config = {
        "name": f"fixture-{policy}",
        "block_size": 4,
        "num_blocks": 9 if is_v1 else 8,
        "variant": VARIANTS[policy],
        "initial": pool.snapshot(),
    }
    if not is_v1:
        config["watermark"] = 0.0

    def content(name):
        return TokenIds(np.array(tokens[name], dtype=np.int64), interner)

    def computed(seq, num_tokens):
        seq.num_computed_tokens += num_tokens
        pool.cache_blocks(seq)
        return {"status": "OK", "block_table": pool.block_table(seq)}

    def allocate(name, prompt, chunk=None):
        tokens[name] = list(prompt)
        keys = content(name).block_keys(4).tolist()
        seq = Sequence(Request(name, 0, content(name), len(tokens[name]), 0), keys)
        match = pool.match_prefix(seq)
        num_tokens = min(seq.num_tokens - match.num_tokens, chunk or seq.num_tokens)
        if not pool.allocate(seq, match, num_tokens):
            return {"status": "LATER"}
        live[name] = seq
        seq.num_computed_tokens = match.num_tokens
        answer = {**computed(seq, num_tokens), "num_cached_tokens": match.num_hit_blocks * 4}
        return {**answer, "num_computed_tokens": seq.num_computed_tokens} if is_v1 else answer

    def extend(name, num_tokens):
        if not pool.allocate(live[name], NO_MATCH, num_tokens):
            return {"status": "LATER"}
        answer = computed(live[name], num_tokens)
        return {**answer, "num_computed_tokens": live[name].num_computed_tokens}

    def append(name, new_tokens):
        seq = live[name]
        tokens[name] += new_tokens
        seq.block_keys = content(name).block_keys(4).tolist()
        seq.num_tokens = len(tokens[name])
        assert pool.allocate(seq, NO_MATCH, len(new_tokens))
        return computed(seq, len(new_tokens))

    def free(name):
        pool.free(live.pop(name))
        return {"status": "OK"}

    shared = list(range(1, 9))
    script = [
        ("allocate", "a", {"tokens": [*shared, 11, 12, 13]}),
        ("append", "a", {"tokens": [14]}),
        ("append", "a", {"tokens": [15]}),
        ("allocate", "b", {"tokens": [*shared, 21, 22]}),
        ("allocate", "c", {"tokens": list(range(31, 51))}),
        ("free", "a", {}),
        ("allocate", "c", {"tokens": list(range(31, 43))}),
        ("free", "b", {}),
        ("allocate", "d", {"tokens": shared}),
        ("free", "c", {}),
        ("free", "d", {}),
        ("allocate", "e", {"tokens": [*shared, *range(51, 75)]}),
        ("free", "e", {}),
        ("allocate", "f", {"tokens": [*shared, 11, 12, 13, 14, 15]}),
        ("free", "f", {}),
    ]
    if is_v1:
        script += [
            ("allocate", "g", {"tokens": list(range(81, 101)), "chunk": 6}),
            ("extend", "g", {"num_tokens": 6}),
            ("extend", "g", {"num_tokens": 8}),
            ("free", "g", {}),
        ]
    operations = {"allocate": allocate, "extend": extend, "append": append, "free": free}
    lines = [config]
    for now, (op, name, arguments) in enumerate(script):
        clock.now_ns = now * 10**9
        answer = operations[op](name, *arguments.values())
        expect = {**answer, **pool.snapshot()}
        lines.append({"op": op, "request": name, "now": float(now), **arguments, "expect": expect})
    return lines


def scheduler_log():
    """Six requests, half of them sharing a prefix, in a pool that makes one of them give way."""
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 12, "long_prefill_token_threshold": 8}
    shared = list(range(1, 9))
    rows = [
        ([*shared, 11, 12, 13], range(101, 111)),
        ([*shared, 21], range(201, 209)),
        (range(31, 46), range(301, 306)),
        ([*shared, 11, 12, 13, 101, 102], range(401, 404)),
        (range(51, 54), [501]),
        (range(61, 65), range(601, 605)),
    ]
    arrival_steps = [1, 1, 2, 4, 4, 9]
    requests = requests_of(*rows)
    pool = make("vllm_v1", 9, 4)
    scheduler = Scheduler(SchedulerConfig(**limits), pool)
    lines = [
        {
            "name": "fixture-scheduler",
            "block_size": 4,
            "num_blocks": 10,
            **limits,
            "enable_prefix_caching": True,
            "variant": "scheduler-v1-0.8.5",
        }
    ]
    for request, (prompt, output), step in zip(requests, rows, arrival_steps, strict=True):
        lines.append(
            {
                "kind": "request",
                "request": request.request_id,
                "arrival_step": step,
                "tokens": list(prompt),
                "output_tokens": list(output),
            }
        )
    number = 0
    while number == 0 or scheduler.has_work():
        number += 1
        added = [r for r, step in zip(requests, arrival_steps, strict=True) if step == number]
        for request in added:
            scheduler.add(sequence_of(request, 4))
        step = scheduler.schedule()
        scheduler.complete(step)
        lines.append(
            {
                "kind": "step",
                "step": number,
                "added": [request.request_id for request in added],
                "num_scheduled_tokens": {seq.request_id: n for seq, n in step.scheduled},
                "admitted_num_cached_tokens": {seq.request_id: n for seq, n in step.admitted},
                "preempted": [seq.request_id for seq in step.preempted],
                "finished": [seq.request_id for seq in step.finished],
                "num_free_blocks": pool.usage().free,
                "num_running": len(scheduler.running),
                "num_waiting": len(scheduler.waiting),
                "prefix_cache_block_queries": step.num_block_queries,
                "prefix_cache_block_hits": step.num_block_hits,
            }
        )
    return lines


def engine_log():
    """Requests 1 to 5 of the tiny trace."""
    start, count = 1, 5
    price = {"step_base_ns": 1000, "step_per_token_ns": 10, "step_per_seq_ns": 3}
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 600}
    requests = load(TRACE).requests[start : start + count]
    first_ns = requests[0].arrival_ns
    recorder = Recorder()
    engine = Engine(
        lambda clock: make("vllm_v1", 200, 16, clock),
        SchedulerConfig(**limits),
        LinearCost(**price),
        recorder,
    )
    moved = [
        Request(
            r.request_id,
            r.arrival_ns - first_ns,
            r.content,
            r.num_prompt_tokens,
            r.num_output_tokens,
        )
        for r in requests
    ]
    engine.run(moved)
    records = recorder.requests
    lines = [
        {
            "kind": "config",
            "block_size": 16,
            "num_blocks": 201,
            **limits,
            **price,
            "trace": TRACE.name,
            "start": start,
            "count": count,
            "variant": "vllm-0.8.5-v1-scheduler",
        }
    ]
    for index, record in enumerate(records):
        lines.append(
            {
                "kind": "request",
                "index": start + index,
                "arrival_ns": record.arrival_ns,
                "num_prompt_tokens": record.request.num_prompt_tokens,
                "num_output_tokens": record.request.num_output_tokens,
                "num_cached_tokens": record.num_cached_tokens,
                "admitted_ns": record.admitted_ns,
                "first_token_ns": record.first_token_ns,
                "finished_ns": record.finished_ns,
                "num_preemptions": record.num_preemptions,
            }
        )
    num_cached_tokens = sum(record.num_cached_tokens for record in records)
    num_prompt_tokens = sum(record.request.num_prompt_tokens for record in records)
    ttft_ns = [record.first_token_ns - record.arrival_ns for record in records]
    lines.append(
        {
            "kind": "summary",
            "steps": recorder.num_steps,
            "makespan_ns": recorder.end_ns,
            "prefix_cache_block_queries": recorder.num_block_queries,
            "prefix_cache_block_hits": recorder.num_block_hits,
            "num_cached_tokens": num_cached_tokens,
            "num_prompt_tokens": num_prompt_tokens,
            "token_hit_rate": num_cached_tokens / num_prompt_tokens,
            "preemptions": recorder.num_preemptions,
            "mean_ttft_ns": sum(ttft_ns) / len(ttft_ns),
        }
    )
    return lines


def text_of(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def trace_lines():
    """A Mooncake trace of seven requests in three families."""
    rows = [
        (0, 600, 3, [0, 1]),
        (10, 1300, 4, [0, 2, 3]),
        (10, 700, 2, [4, 5]),
        (11, 1300, 5, [0, 2, 3]),
        (11, 1100, 1, [4, 6, 7]),
        (40, 1500, 2, [0, 2, 8]),
        (60, 100, 2, [9]),
    ]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return [dict(zip(names, row, strict=True)) for row in rows]


def logs():
    """Every fixture: file name and text."""
    made = {f"allocator-{policy}.jsonl": allocator_log(policy) for policy in VARIANTS}
    made["scheduler.jsonl"] = scheduler_log()
    made["engine.jsonl"] = engine_log()
    return {name: text_of(lines) for name, lines in made.items()}


if __name__ == "__main__":
    LOGS.mkdir(parents=True, exist_ok=True)
    TRACE.parent.mkdir(parents=True, exist_ok=True)
    TRACE.write_text(text_of(trace_lines()), encoding="utf-8")
    for file_name, text in logs().items():
        (LOGS / file_name).write_text(text, encoding="utf-8")
