"""A policy from outside that breaks the rules is named, with method and line; no run hangs."""

import sys

import pytest

from sim.config import RunConfig
from sim.errors import UsageError
from sim.experiment import run
from sim.explained import tell

SMALL = {"workload_args": {"num_requests": 5, "prompt": 64, "output": 4, "num_prefixes": 2}}


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Run V1 with one method replaced, as a policy from outside."""

    def run_with(body, **settings):
        (tmp_path / "outside_policy.py").write_text(
            "from policies.vllm_v1 import VllmV1\n"
            "from sim.types import BlockUsage, PrefixMatch\n\n\n"
            "class Mine(VllmV1):\n" + "".join(f"    {line}\n" for line in body.splitlines())
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "outside_policy", raising=False)
        return run(RunConfig(policy="outside_policy:Mine", **SMALL, **settings), keep_steps=True)

    return run_with


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            "def match_prefix(self, seq):\n    return [1]",
            r"match_prefix returned \[1\], not a sim.types.PrefixMatch",
        ),
        (
            "def match_prefix(self, seq):\n    return PrefixMatch((), seq.num_tokens, 4, 4)",
            "match_prefix says that 64 of the 64 tokens of request .* are hit, but the last one",
        ),
        (
            "def match_prefix(self, seq):\n    return PrefixMatch((), -1)",
            "match_prefix says that -1 of the 64 tokens",
        ),
        (
            "def allocate(self, seq, match, num_tokens):\n    return None",
            "allocate returned None, not True or False",
        ),
        (
            "def allocate(self, seq, match, num_tokens):\n    return {}['x']",
            r"allocate raised KeyError: 'x' \(.*outside_policy.py:7\)",
        ),
        ("def cache_blocks(self, seq):\n    assert False", "cache_blocks raised AssertionError"),
        ("def free(self, seq):\n    1 / 0", "free raised ZeroDivisionError: division by zero"),
        (
            "def usage(self):\n    return BlockUsage(0, 0, 0)",
            "usage counts 0 used and 0 free blocks of",
        ),
        ("def usage(self):\n    return 1", "usage returned 1, not a sim.types.BlockUsage"),
        (
            "def max_request_blocks(self):\n    return '9'",
            "max_request_blocks gives '9'",
        ),
        (
            "def match_prefix(self, seq):\n    return PrefixMatch((), 0, 'x', 0)",
            "match_prefix returned PrefixMatch.*, whose numbers are none",
        ),
        ("def free(self, seq):\n    raise SystemExit(0)", "free raised SystemExit: 0"),
        (
            "counts = 'x'\ndef __init__(self, *a, **k):\n    super().__init__(*a, **k)\n"
            "    self.counts = 'x'",
            "counts is not a sim.types.OperationCounts",
        ),
        (
            "def __init__(self, *a, **k):\n    super().__init__(*a, **k)\n    self.block_size = 0",
            "block_size gives 0, not a whole number of at least 1",
        ),
        (
            "def __init__(self, *a, **k):\n    raise ValueError('no')",
            "cannot be made .ValueError: no.; its constructor takes",
        ),
        ("overhead_profiles = 'abc'", "overhead_profiles gives no mapping from 'vllm' and 'own'"),
        (
            "def allocate(self, seq, match, num_tokens):\n    return False",
            "the policy refuses blocks to request .* although nothing else runs",
        ),
        (
            "def __init__(self, num_blocks):\n    pass",
            r"cannot be made \(TypeError: .*\); its constructor takes num_blocks",
        ),
    ],
)
def test_a_rule_that_is_broken_is_named(outside, body, sentence):
    with pytest.raises(UsageError, match=sentence) as caught:
        outside(body)
    assert "\n" not in str(caught.value)


def test_a_request_that_loses_its_first_chunk_again_and_again_ends_the_run(outside):
    body = (
        "def allocate(self, seq, match, num_tokens):\n"
        "    if seq.num_computed_tokens:\n"
        "        return False\n"
        "    return super().allocate(seq, PrefixMatch(), num_tokens)"
    )
    # Whole prompts come a token further every time; chunks of 16 tokens never do.
    assert outside(body).summary["num_finished"] == 5
    with pytest.raises(UsageError, match="although nothing else runs"):
        outside(body, max_num_batched_tokens=16)


def test_what_keeps_the_rules_runs_as_the_policy_itself(outside):
    assert (
        outside("pass").summary["num_cached_tokens"]
        == run(RunConfig(**SMALL)).summary["num_cached_tokens"]
    )


def test_options_are_those_beyond_what_every_policy_takes(outside):
    body = (
        "def __init__(self, *, num_blocks, block_size, clock, window=4):\n"
        "    super().__init__(num_blocks, block_size, clock)"
    )
    outside(body)
    with pytest.raises(UsageError, match="has no such option; it takes window"):
        run(RunConfig(policy="outside_policy:Mine", policy_args={"block_size": "3"}))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def x(:", "importing module 'broken_policy' raised SyntaxError"),
        ("raise SystemExit(0)", "importing module 'broken_policy' raised SystemExit"),
        ("import nothing_of_this_name", "module 'broken_policy' cannot be imported"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(tmp_path, monkeypatch, source, sentence):
    (tmp_path / "broken_policy.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_policy", raising=False)
    with pytest.raises(UsageError, match=sentence):
        run(RunConfig(policy="broken_policy:X"))


@pytest.mark.parametrize("name", ["../x:Y", ".x:Y"])
def test_a_module_is_named_as_python_names_it(name):
    with pytest.raises(UsageError, match="cannot be imported"):
        run(RunConfig(policy=name))


def test_what_a_policy_shows_beside_the_protocol_is_checked_too(outside):
    outside("def snapshot(self):\n    raise ValueError('s')")
    config = RunConfig(policy="outside_policy:Mine", kv_capacity="100blocks", **SMALL)
    with pytest.raises(UsageError, match="snapshot raised ValueError: s"):
        tell(config)
