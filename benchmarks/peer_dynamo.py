"""Replays a trace with NVIDIA Dynamo; runs in Dynamo's own environment, not in ours.

``python peer_dynamo.py TRACE BLOCK_SIZE NUM_BLOCKS`` prints one JSON object: ``call_s``, the time
of the call, and ``hit_rate``, what was reused of the prompts at first admission.
"""

import json
import sys
import time


def main() -> None:
    """Replay once."""
    from dynamo.replay import run_trace_replay  # noqa: PLC0415 - a peer's, mostly absent

    trace, block_size, num_blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = {
        "backend": "vllm",
        "worker_type": "aggregated",
        "block_size": block_size,
        "num_gpu_blocks": num_blocks,
        "enable_prefix_caching": True,
    }
    started = time.perf_counter()
    report = run_trace_replay(trace, extra_engine_args={"engine": engine}, trace_block_size=512)
    call_s = time.perf_counter() - started
    hit_rate = report.summary["first_admission_prefix_cache_reused_ratio"]
    sys.stdout.write(json.dumps({"call_s": call_s, "hit_rate": hit_rate}) + "\n")


if __name__ == "__main__":
    main()
