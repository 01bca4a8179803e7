import pytest

from sim.errors import UsageError
from workloads import GENERATORS, dials, infinite_hit_rate, load

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
        ("shared-prefx", {}, "'shared-prefx' is neither a generator .shared-prefix, "),
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


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:17:{i % 60:02d}.5,{50 + 37 * i % 400},{i % 7}" for i in range(60)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return path


@pytest.mark.parametrize("hit_rate", [0, 0.1, 0.4, 0.7])
@pytest.mark.parametrize("zipf", [0, 1])
def test_sharing_is_added_to_lengths(lengths, hit_rate, zipf):
    plain = load(lengths)
    assert not plain.has_prefix_info
    workload = load(lengths, args={"hit_rate": hit_rate, "zipf": zipf, "num_prefixes": "3"})
    assert workload.has_prefix_info
    half_a_token = 0.5 * 60 / sum(r.num_prompt_tokens for r in plain.requests)
    achieved = infinite_hit_rate(workload.requests, 1)
    assert achieved == pytest.approx(hit_rate, abs=half_a_token)
    assert f"{achieved:.6f}" in workload.notes[0]
    for one, other in zip(plain.requests, workload.requests, strict=True):
        assert one.num_prompt_tokens == other.num_prompt_tokens
        assert one.content.num_tokens == other.content.num_tokens


def test_dials_of_added_sharing_are_checked(lengths):
    with pytest.raises(UsageError, match=r"hit_rate is 0\.99, but these prompts reach"):
        load(lengths, args={"hit_rate": 0.99})
    with pytest.raises(UsageError, match="dials that add sharing are hit_rate"):
        load(lengths, args={"prompt": 5})
    with pytest.raises(UsageError, match="num_prefixes is 'x'"):
        load(lengths, args={"num_prefixes": "x"})


def test_options_of_traces_mean_nothing_to_generators():
    for options in ({"lenient": True}, {"trace_block_size": 16}, {"format_name": "mooncake"}):
        with pytest.raises(
            UsageError, match="is about reading a trace, but uniform is a generator"
        ):
            load("uniform", **options)
