"""What the tests of pictures share: tables made by hand, and what a figure holds."""

import pandas as pd

from sim.columns import columns_of
from sim.config import RunConfig
from sim.results import make_frame

CAPACITIES = [20_000 * 3**i for i in range(6)]
BLANK = {"str": "", "bool": False, "int64": 0, "float64": 0.0}
DEFAULTS = {
    name: getattr(RunConfig(), name)
    for name in (
        *("partial_blocks", "reuse", "arrival", "rate_scale", "max_num_seqs"),
        *("max_num_batched_tokens", "host_bandwidth", "host_latency", "ssd_bandwidth"),
        *("ssd_latency", "tier_write"),
    )
}
ZERO = {column.name: BLANK[column.dtype] for column in columns_of("summary")} | DEFAULTS
"""A row of a run with every setting at its default, and no result."""


def summary_of(*rows):
    """Make a summary table; a row names what differs from one plain run."""
    plain = {
        **ZERO,
        "workload": "conversation",
        "policy": "vllm_v1",
        "block_size": 16,
        "kv_capacity_tokens": 100_000,
        "num_finished": 1000,
        "num_prompt_tokens": 10**9,
        "hit_rate": 0.3,
        "infinite_hit_rate": 0.45,
        "ttft_ms_mean": 300.0,
        "ttft_ms_p90": 900.0,
    }
    frame = pd.DataFrame([{**plain, "run_id": f"run{i}", **row} for i, row in enumerate(rows)])
    # Columns of digests, which a table may lack, are kept.
    others = frame[[name for name in frame if name not in ZERO]]
    return pd.concat([make_frame("summary", frame), others], axis=1)


def hit_rate(capacity, half_at=400_000):
    return 0.45 / (1 + half_at / capacity)


def sweep(policies=("none", "vllm_v0", "vllm_v1"), capacities=CAPACITIES, **same):
    return [
        {
            "policy": policy,
            "kv_capacity_tokens": capacity,
            "hit_rate": 0.0 if policy == "none" else hit_rate(capacity),
            **same,
        }
        for policy in policies
        for capacity in capacities
    ]


def requests_of(**ttft_ms):
    frames = []
    for run_id, values in ttft_ms.items():
        numbers = {c.name: 0 for c in columns_of("requests") if c.dtype != "str"}
        texts = {c.name: "" for c in columns_of("requests") if c.dtype == "str"}
        rows = [{**numbers, **texts, "run_id": run_id, "ttft_ms": value} for value in values]
        frames.append(make_frame("requests", rows))
    return pd.concat(frames, ignore_index=True)


def lines(ax, *, guides=False):
    """Lines of data by label, without the floor, ceilings and percentiles unless asked for."""
    found = {}
    for line in ax.lines:
        label = line.get_label()
        if guides == (label in ("floor", "ceiling", "p50", "p90", "p99")):
            found.setdefault(label, []).append(line)
    return found


def legend(figure):
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def title(figure):
    return figure.get_suptitle()
