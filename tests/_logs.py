"""What the tests of recorded logs share: reading, writing and verifying files of lines."""

import json

from _record_logs import LOGS, text_of

from sim.verify import verify

V1_LOG = LOGS / "allocator-vllm_v1.jsonl"
V0_LOG = LOGS / "allocator-vllm_v0.jsonl"
SCHEDULER_LOG = LOGS / "scheduler.jsonl"
ENGINE_LOG = LOGS / "engine.jsonl"


def lines_of(path):
    return [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]


def write(path, lines):
    path.write_text(text_of(lines), encoding="utf-8")
    return path


def error_of(path, text=None, **options):
    """Verify one file that cannot be replayed; return what is said about it."""
    if text is not None:
        path.write_text(text, encoding="utf-8")
    outcome = verify([path], **options)
    assert (outcome.num_files, outcome.num_agreeing, outcome.num_diverging) == (1, 0, 0)
    assert outcome.divergences == []
    (error,) = outcome.errors
    assert error.startswith(str(path))
    assert "\n" not in error
    assert error.endswith(".")
    return error
