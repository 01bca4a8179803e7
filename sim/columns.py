"""The one list of every column of every table that a run writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Table = Literal["summary", "requests", "steps", "curve", "compare"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its table, name, pandas dtype, unit and meaning."""

    table: Table
    name: str
    dtype: str
    unit: str
    meaning: str


def _columns(table: Table, rows: str) -> tuple[Column, ...]:
    parts = ([part.strip() for part in line.split("|")] for line in rows.strip().splitlines())
    return tuple(Column(table, *part) for part in parts)


COLUMNS: tuple[Column, ...] = (
    *_columns(
        "summary",
        """
        run_id | str | | hash of the configuration: same id, same bytes
        workload | str | | trace file or generator
        workload_digest | str | | digest of the trace file, empty for a generator
        workload_args | str | | dials of the generator
        trace_block_size | int64 | tokens | tokens that the workload tells apart: a hash id's, or 1
        lenient | bool | | whether bad rows of the trace were skipped
        partial_blocks | str | | own, or shared with whoever continues the prompt
        system_prompt | int64 | tokens | assumed to begin all prompts of the trace
        policy | str | | allocator
        policy_digest | str | | digest of the source of a policy from outside
        policy_args | str | | options of the policy
        block_size | int64 | tokens | block size of the engine
        kv_capacity_tokens | int64 | tokens | usable blocks times block size
        num_blocks | int64 | blocks | usable blocks of the pool
        host_capacity_tokens | int64 | tokens | blocks of host memory times block size, 0: none
        host_bandwidth | float64 | GB/s | of loads from host memory
        host_latency | float64 | us | of a request's load from host memory
        ssd_capacity_tokens | int64 | tokens | blocks of the SSD times block size, 0: none
        ssd_bandwidth | float64 | GB/s | of loads from the SSD
        ssd_latency | float64 | us | of a request's load from the SSD
        tier_write | str | | through, or evict: when blocks are written to host memory and SSD
        cost | str | | preset or file that priced the steps
        cost_digest | str | | digest of the cost file, empty for a preset
        overhead | str | | profile that priced cache management
        overhead_digest | str | | digest of the profile's file, empty for a built-in one
        overlap | bool | | whether cache management runs beside the GPU
        cascade | float64 | | share of the reads of a common prefix that are saved
        reuse | str | | all, or prefill: which blocks are cached
        arrival | str | | trace, or the process that replaced its time stamps
        rate_scale | float64 | | factor by which arrivals were sped up
        max_num_seqs | int64 | sequences | sequences that may run at a time
        max_num_batched_tokens | int64 | tokens | tokens that a step may compute
        long_prefill_token_threshold | int64 | tokens | the same for one sequence, 0: no limit
        seed | int64 | | seed of generator and arrival process
        num_requests | int64 | requests | requests that arrived
        num_finished | int64 | requests | requests served to the last token
        num_rejected | int64 | requests | requests that could never fit
        num_preemptions | int64 | | times that a running request lost its blocks
        num_steps | int64 | steps | engine steps
        num_prompt_tokens | int64 | tokens | prompt tokens of the finished requests
        num_output_tokens | int64 | tokens | output tokens of the finished requests
        num_cached_tokens | int64 | tokens | prompt tokens hit at first admission
        hit_rate | float64 | | cached / prompt tokens, each request once, all tiers together
        device_hit_rate | float64 | | the part of hit_rate that the GPU's own KV cache gave
        host_hit_rate | float64 | | the part of hit_rate that was loaded from host memory
        ssd_hit_rate | float64 | | the part of hit_rate that was loaded from the SSD
        infinite_hit_rate | float64 | | hit_rate of the policy's rules in a cache that never evicts
        block_hit_rate | float64 | | hit / full blocks of the prompts
        mean_request_hit_rate | float64 | | mean over requests of cached / prompt tokens
        share_requests_hit | float64 | | share of requests with any hit
        last_half_hit_rate | float64 | | hit_rate over the last half of the requests, after warm-up
        num_block_queries | int64 | blocks | blocks asked for, every lookup counted
        num_block_hits | int64 | blocks | blocks found, every lookup counted
        lookup_hit_rate | float64 | | num_block_hits / num_block_queries, as vLLM counts
        num_host_tokens | int64 | tokens | of num_cached_tokens, loaded from host memory
        num_ssd_tokens | int64 | tokens | of num_cached_tokens, loaded from the SSD
        num_recomputed_tokens | int64 | tokens | in a tier, but quicker to compute; no hits
        host_read_gb | float64 | GB | loaded from host memory, after preemptions too
        host_written_gb | float64 | GB | written to host memory
        ssd_read_gb | float64 | GB | loaded from the SSD, after preemptions too
        ssd_written_gb | float64 | GB | written to the SSD
        makespan_s | float64 | s | simulated time to the end of the last step
        gpu_s | float64 | s | simulated time of the model's forward passes
        load_s | float64 | s | simulated time that steps waited for loads from tiers
        overhead_s | float64 | s | modelled CPU time of cache management
        overhead_share | float64 | | overhead_s / (gpu_s + overhead_s)
        request_throughput | float64 | requests/s | finished requests / makespan
        output_throughput | float64 | tokens/s | output tokens / makespan
        total_throughput | float64 | tokens/s | prompt and output tokens / makespan
        queue_ms_mean | float64 | ms | arrival to first admission, mean
        ttft_ms_mean | float64 | ms | time to first token, mean
        ttft_ms_p50 | float64 | ms | time to first token, median
        ttft_ms_p90 | float64 | ms | time to first token, 90th percentile
        ttft_ms_p99 | float64 | ms | time to first token, 99th percentile
        tpot_ms_mean | float64 | ms | time per output token after the first, mean over requests
        tpot_ms_p50 | float64 | ms | time per output token after the first, median
        tpot_ms_p90 | float64 | ms | time per output token after the first, 90th percentile
        tpot_ms_p99 | float64 | ms | time per output token after the first, 99th percentile
        e2e_s_mean | float64 | s | arrival to last token, mean
        e2e_s_p50 | float64 | s | arrival to last token, median
        e2e_s_p90 | float64 | s | arrival to last token, 90th percentile
        e2e_s_p99 | float64 | s | arrival to last token, 99th percentile
        """,
    ),
    *_columns(
        "requests",
        """
        run_id | str | | run that the row belongs to
        request_id | str | | id in the workload
        status | str | | finished or rejected
        rejection | str | | why it was rejected
        num_prompt_tokens | int64 | tokens | length of the prompt
        num_output_tokens | int64 | tokens | length of the output
        num_cached_tokens | int64 | tokens | hit at first admission, in the GPU or in a tier
        num_host_tokens | int64 | tokens | of these, loaded from host memory
        num_ssd_tokens | int64 | tokens | of these, loaded from the SSD
        num_recomputed_tokens | int64 | tokens | in a tier then, but quicker to compute; no hits
        load_ms | float64 | ms | start of the admitting step until its loads were there
        num_preemptions | int64 | | times it lost its blocks
        arrival_s | float64 | s | simulated time of arrival
        admitted_s | float64 | s | simulated start of the step that first admitted it
        first_token_s | float64 | s | simulated end of the step that made the first token
        finished_s | float64 | s | simulated end of the step that made the last token
        queue_ms | float64 | ms | arrival to first admission
        ttft_ms | float64 | ms | arrival to first token
        tpot_ms | float64 | ms | (e2e - ttft) / (output tokens - 1)
        e2e_s | float64 | s | arrival to last token
        """,
    ),
    *_columns(
        "steps",
        """
        run_id | str | | run that the row belongs to
        start_s | float64 | s | simulated start of the step
        duration_ms | float64 | ms | simulated length of the step
        num_scheduled_seqs | int64 | sequences | sequences that computed something
        num_new_tokens | int64 | tokens | tokens computed
        num_admitted | int64 | sequences | admissions, first or again
        num_preempted | int64 | sequences | preemptions
        num_running | int64 | sequences | running after scheduling
        num_waiting | int64 | sequences | waiting after scheduling
        num_used_blocks | int64 | blocks | held by requests
        num_cached_blocks | int64 | blocks | with a key that can be hit, held or free
        """,
    ),
    *_columns(
        "curve",
        """
        workload | str | | trace file or generator
        policy | str | | allocator, or store: prompts kept beside the engine
        order | str | | tail or head: which block of a request is evicted first
        reuse | str | | all, or prefill: which blocks are cached
        block_size | int64 | tokens | block size of the engine
        sample_stride | int64 | blocks | one of how many blocks was drawn; 1: all, no estimate
        mark | str | | what is special about the capacity
        num_blocks | int64 | blocks | usable blocks of the pool
        kv_capacity_tokens | int64 | tokens | usable blocks times block size
        kv_capacity_gib | float64 | GiB | its KV, of the model
        working_set_share | float64 | | capacity / distinct prompt tokens
        hit_rate | float64 | | cached / prompt tokens, requests that fit; at most, if not exact
        least_hit_rate | float64 | | the same, at least
        exact | bool | | whether a replay one request at a time hits the same to the token
        infinite_hit_rate | float64 | | hit_rate of a cache that never evicts
        ceiling_share | float64 | | hit_rate / infinite_hit_rate
        belady_hit_rate | float64 | | hit_rate of the best possible choice of victims
        num_cached_tokens | int64 | tokens | prompt tokens hit
        num_prompt_tokens | int64 | tokens | prompt tokens of the requests that fit
        num_refused | int64 | requests | requests that can never fit
        """,
    ),
    *_columns(
        "compare",
        """
        workload | str | | trace file or generator
        capacity | str | | KV capacity as it was asked for
        policy | str | | allocator
        policy_args | str | | options of the policy
        block_size | int64 | tokens | block size of the engine
        num_blocks | int64 | blocks | usable blocks of the pool, of the first seed
        kv_capacity_tokens | int64 | tokens | usable blocks times block size
        num_seeds | int64 | | workloads that were generated
        num_refused | int64 | requests | requests that can never fit
        hit_rate | float64 | | cached / prompt tokens, over all seeds
        reference | str | | policy that the others are compared with
        difference | float64 | | hit_rate less that of the reference
        difference_low | float64 | | lower end of its 95 % interval, all intervals at once
        difference_high | float64 | | upper end
        verdict | str | | better, worse, noise, same, unknown, reference: how it stands to that
        bound | str | | belady, or infinite: a cache that never evicts
        bound_hit_rate | float64 | | hit_rate of the bound
        share_of_way | float64 | | difference / (bound_hit_rate - hit_rate of the reference)
        ttft_ms_mean | float64 | ms | time to first token, mean, and over seeds the mean
        ttft_ms_p50 | float64 | ms | the same of the median
        overhead_ms | float64 | ms | modelled CPU time of cache management per finished request
        overhead | str | | profile that priced it; not measured: none of this very policy
        """,
    ),
)
"""Every column of every table that a run writes, in order."""


def columns_of(table: Table) -> list[Column]:
    """List the columns of one table."""
    return [column for column in COLUMNS if column.table == table]
