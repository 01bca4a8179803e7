"""Runs whose columns lie in files are worked on a few rows at a time, and come out the same."""

import json
import random
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.config import RunConfig
from sim.experiment import run
from sim.mapped import LARGE
from sim.store import ResultStore
from sim.turn_order import NONE, following_turns, places_of
from workloads.requests import as_requests
from workloads.shared_prefix import shared_prefix


@pytest.fixture
def trace(tmp_path):
    """Conversations, single requests, a few that never fit, and rows out of order."""
    rng = random.Random(3)
    rows = []
    for index in range(400):
        session = rng.randrange(60)
        size = 40 if index % 97 == 5 else rng.randrange(1, 6)
        rows.append(
            {
                "timestamp": 40 * index + rng.randrange(-90, 90) + 100,
                "input_length": 4 * size,
                "output_length": rng.randrange(0, 7),
                "hash_ids": [1000 * session + place for place in range(size)],
                "request_id": f"r{index}",
                **({"session_id": f"s{session}"} if session < 40 else {}),
                **({"delay": rng.randrange(50)} if session < 20 else {}),
            }
        )
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


SETTINGS = [
    {},
    {"sessions": "closed"},
    {"sessions": "closed", "duration": 9},
    {"sessions": "closed", "arrival": "users", "users": 3},
    {"arrival": "gamma", "rate": 30, "burstiness": 0.4, "seed": 5},
    {"arrival": "poisson", "rate": 30, "seed": 5, "sessions": "closed"},
    {"arrival": "day", "rate": 30, "seed": 5},
    {"rate_scale": 1.7, "duration": 8, "reuse": "prefill"},
    {"kv_capacity": "infinite"},
    {"policy": "none"},
]


@pytest.mark.parametrize("engine", ["plain", "fast"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_run_in_files_writes_the_same(engine, settings, trace, tmp_path, monkeypatch):
    given_settings = {"kv_capacity": "30blocks", "block_size": 4, "max_num_seqs": 6, **settings}
    config = RunConfig(
        workload=str(trace), engine=engine, trace_block_size=4, lenient=True, **given_settings
    )
    in_memory, in_files = ResultStore(tmp_path / "memory"), ResultStore(tmp_path / "files")
    in_memory.write(run(config, keep_steps=True))
    in_memory.write_tables()
    monkeypatch.setattr("sim.mapped.LARGE", 1)
    monkeypatch.setattr("sim.mapped.AT_ONCE", 7)
    monkeypatch.setattr("sim.fast.keys._AT_ONCE", 5)
    for module in ("results", "experiment", "run_files"):
        monkeypatch.setattr(f"sim.{module}.AT_ONCE", 11)
    # The other's workload is kept.
    monkeypatch.setattr("sim.demand._load_workload", unkept)
    in_files.write(run(config, keep_steps=True))
    in_files.write_tables()
    assert len(in_files.requests()) > 100
    for name in ("requests.csv", "steps.csv"):
        assert (in_files.folder / name).read_bytes() == (in_memory.folder / name).read_bytes()
    # Sums of parts may differ in the last digit from sums of all.
    pd.testing.assert_frame_equal(in_files.summaries(), in_memory.summaries(), rtol=1e-12)


def unkept(*key, **options):
    from sim.demand import load  # noqa: PLC0415

    return load(key[0], args={}, **options)


@given(
    sessions=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=12),
    at_once=st.integers(1, 5),
    in_columns=st.booleans(),
)
def test_turns_follow_each_other(sessions, at_once, in_columns):
    requests = tuple(
        replace(r, session_id=name) for r, name in zip(REQUESTS, sessions, strict=False)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.mapped.AT_ONCE", at_once)
        following, is_first = following_turns(as_requests(requests) if in_columns else requests)
        first = list(places_of(is_first))
    for place, name in enumerate(sessions):
        later = [other for other in range(place + 1, len(sessions)) if sessions[other] == name]
        assert following[place] == (later[0] if later and name is not None else NONE)
        assert (place in first) == (name is None or name not in sessions[:place])


REQUESTS = shared_prefix(num_requests=12, hit_rate=0, prompt=1, output=1).requests

_RUN = """
import resource, sys
from functools import partial
from sim import experiment, mapped, results, run_files
from sim.cli import make_app
from sim.fast import keys
from workloads import mooncake, segment_rows
# As it is from 200,000 prompts on.
mooncake.PrefixTree = partial(mooncake.PrefixTree, compile_from=1)
# A sixteenth of what they are: this trace stands for one that is sixteen times as long.
mapped.LARGE = int(sys.argv[1])
mapped.AT_ONCE >>= 4
segment_rows.AT_ONCE >>= 4
keys._AT_ONCE >>= 4
results.AT_ONCE = experiment.AT_ONCE = run_files.AT_ONCE = results.AT_ONCE >> 4
def prefixsim(*words):
    sys.argv = ["prefixsim", *words]
    try:
        make_app()()
    except SystemExit as done:
        if done.code:
            raise
trace, folder, engine, *more = sys.argv[2:]
words = ["run", trace, "--trace-block-size", "4", "--block-size", "4", "--engine", engine, *more]
words += ["--kv-capacity", "2000blocks", "-o", folder]
# What libraries take once is taken now: threads of Arrow, compiled code.
prefixsim(*words, "--num-requests", "50")
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
limit = used + (10 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
prefixsim(*words)
"""


NEVER = 1 << 40


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory):
    """A hundred thousand short requests."""
    rng = random.Random(4)
    path = tmp_path_factory.mktemp("long") / "trace.jsonl"
    with path.open("w") as file:
        for index in range(100_000):
            ids = [rng.randrange(300), 1000 + rng.randrange(9000), 10**6 + index]
            file.write(
                f'{{"timestamp": {3 * index}, "input_length": 12, "output_length": 2,'
                f' "hash_ids": {ids}}}\n'
            )
    return path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are told otherwise")
@pytest.mark.parametrize(
    ("large", "engine", "num_requests", "more"),
    [
        (LARGE >> 4, "fast", 100_000, []),
        (LARGE >> 4, "fast", 100_000, ["--arrival", "poisson", "--rate", "300"]),
        (LARGE >> 4, "plain", 30_000, []),
        (NEVER, "fast", 100_000, []),
        (NEVER, "plain", 30_000, []),
    ],
)
def test_a_run_takes_little_memory_of_its_own(  # noqa: PLR0917
    large, engine, num_requests, more, long_trace, tmp_path
):
    """10 MiB for what is read, simulated and written; without files they do not suffice."""
    options = [*more, "--num-requests", str(num_requests)]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(large), str(long_trace), str(tmp_path), engine, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if large == NEVER:
        assert "MemoryError" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert len(ResultStore(tmp_path).requests()) == num_requests + 50
