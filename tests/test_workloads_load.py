import pytest

from sim.errors import UsageError
from workloads import GENERATORS, dials, load

ROW = '{"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [0]}\n'


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "small.trace.jsonl"
    path.write_text(ROW * 3)
    return path


def test_a_path(path):
    workload = load(path, num_requests=2, trace_block_size=16)
    assert workload.name == "small"
    assert len(workload.requests) == 2
    assert workload.identity_block_size == 16
    assert len(load(str(path), args={}).requests) == 3


def test_a_generator_with_dials_as_text():
    args = {"num_requests": "30", "hit_rate": "0.25", "prompt": 64.0, "num_prefixes": 1}
    workload = load("shared-prefix", args=args)
    assert len(workload.requests) == 30
    assert workload.requests[0].num_prompt_tokens == 64
    assert len(load("shared-prefix", num_requests=20).requests) == 20


def test_every_generator_says_what_it_makes():
    for name, make in GENERATORS.items():
        assert make.__doc__.splitlines()[0].endswith(".")
        assert all(type(default) in (int, float) for default in dials(name).values())


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("shared-prefx", {}, "'shared-prefx' is neither a generator .shared-prefix. nor a file"),
        ("x" * 5000, {}, "neither a generator"),
        ("shared-prefix", {"args": {"hits": 1}}, "no dial 'hits'; its dials are num_requests, hit"),
        ("shared-prefix", {"args": {"hit_rate": "half"}}, "hit_rate is 'half', .* not a number"),
        ("shared-prefix", {"args": {"prompt": "1.5"}}, "prompt is '1.5', .* not a whole number"),
        ("shared-prefix", {"args": {"prompt": True}}, "prompt is True"),
        ("shared-prefix", {"num_requests": 1, "args": {"num_requests": 2}}, "given twice"),
    ],
)
def test_what_cannot_be_loaded(source, options, said):
    with pytest.raises(UsageError, match=said):
        load(source, **options)


def test_a_file_has_no_dials(path):
    with pytest.raises(UsageError, match="has no dials, but hit_rate was given"):
        load(path, args={"hit_rate": 1})
