"""Comparisons of policies: an example worked by hand, what they say, and that they go on."""

import json
from pathlib import Path

import pandas as pd
import pytest

from sim import grid, processes
from sim.columns import columns_of
from sim.config import RunConfig

SMALL = [
    "--num-requests", 40, "--workload-arg", "prompt=64", "--workload-arg", "output=4",
    "--workload-arg", "num_prefixes=4", "-j", 1,
]  # fmt: skip


def write_trace(path, prompts, **more):
    """Write a Mooncake trace of blocks of 16 tokens; the last token of a prompt is beyond them."""
    rows = [
        {"timestamp": 1000 * second, "input_length": 16 * len(ids) + 1, "output_length": 1,
         "hash_ids": [*ids, 10_000 + second], **more}
        for second, ids in enumerate(prompts)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def trace(tmp_path):
    """A favourite, ab, between blocks that come once."""
    prompts = [[1, 2], [1, 2], [3, 4], [1, 2], [5, 6], [1, 2], [7, 8], [9, 0], [1, 2]]
    return write_trace(tmp_path / "trace.jsonl", prompts)


def run(prefixsim, *args):
    code, out, err = prefixsim("compare", *args, "--json")
    assert code == 0, err
    return json.loads(out), err


ONE_AT_A_TIME = ["--trace-block-size", 16, "--block-size", 16, "--hits-only", "-j", 1]


def test_an_example_by_hand(prefixsim, trace):
    """Six blocks; each request fills two and holds a third, open one, that is used up first.

    ab, ab, cd, ab fit: 4 blocks hit. ef takes the last two free ones and evicts one, gh two, ij
    two. LRU evicts d, then c and f, then e and b: ab hits 2 before gh, and a alone at the end.
    FIFO evicts b, the first that came (before a: tail first), then a: ab hits a alone before gh,
    nothing at the end. LFU and Belady keep a and b all the time. So of 9 prompts of 33 tokens LRU
    hits 7 blocks of 16, FIFO 5, LFU and the bound 8.
    """
    found, _ = run(
        prefixsim, trace, "--policy", "fifo,lfu", "--kv-capacity", "6blocks,7blocks",
        *ONE_AT_A_TIME,
    )  # fmt: skip
    rows = pd.DataFrame(found["rows"])
    assert list(rows.columns) == [column.name for column in columns_of("compare")]
    six = rows[rows["capacity"] == "6blocks"].set_index("policy")
    assert list(six.index) == ["lfu", "lru", "fifo"]
    assert (six["hit_rate"] * 9 * 33 / 16).tolist() == pytest.approx([8, 7, 5])
    assert (six["bound_hit_rate"] * 9 * 33 / 16).tolist() == pytest.approx([8, 8, 8])
    assert (six["difference"] * 9 * 33 / 16).tolist() == pytest.approx([1, 0, -2])
    assert six["share_of_way"].tolist() == pytest.approx([1, 0, -2])
    # With seven blocks LRU is the bound: there is no way to go.
    seven = rows[rows["capacity"] == "7blocks"]
    assert seven["share_of_way"].isna().all()
    assert seven["num_blocks"].tolist() == [7, 7, 7]
    # Nine requests tell nothing of noise.
    assert set(rows["verdict"]) == {"unknown", "reference"}
    assert found["verdicts"] == [
        "6 blocks: highest is lfu, 43.10 %: +5.39 points over lru; whether that is more "
        "than noise cannot be told.",
        "7 blocks: no policy beats lru; lfu hits the same.",
    ]
    assert found["method"][1] == "9 requests are too few to tell a difference from noise."


def scans(rounds):
    """The favourite and four blocks that come once, again and again."""
    return [
        prompt
        for turn in range(rounds)
        for prompt in ([1, 2], [100 + 4 * turn, 101 + 4 * turn], [102 + 4 * turn, 103 + 4 * turn])
    ]


def test_a_lead_that_stays_is_more_than_noise(prefixsim, tmp_path):
    """LFU always keeps the favourite, LRU never: as long as the trace goes on."""
    trace = write_trace(tmp_path / "trace.jsonl", [[1, 2], *scans(100)])
    found, _ = run(prefixsim, trace, "--policy", "lfu,fifo,sieve", "--kv-capacity", "5blocks",
                   *ONE_AT_A_TIME)  # fmt: skip
    (said,) = found["verdicts"]
    assert said.startswith("5 blocks: best here is lfu, ")
    assert "points over lru (95 %: " in said
    assert "more than noise, 100% of the way to the bound" in said
    assert said.endswith("not told apart from it: sieve.")
    rows = {row["policy"]: row for row in found["rows"]}
    assert 0 < rows["lfu"]["difference_low"] < rows["lfu"]["difference"]
    assert rows["lfu"]["verdict"] == "better"
    assert found["method"][1].endswith("paired bootstrap over 30 stretches of time.")


def test_policies_that_hit_the_same_are_no_more_than_noise(prefixsim, tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", scans(30))
    found, _ = run(prefixsim, trace, "--policy", "fifo,arc", "--kv-capacity", "infinite",
                   *ONE_AT_A_TIME)  # fmt: skip
    rate = f"{100 * found['rows'][0]['hit_rate']:.2f} %"
    assert found["verdicts"][0].endswith(f"all hit the same, {rate}: no more than noise.")
    assert {row["verdict"] for row in found["rows"]} == {"same", "reference"}


def test_one_lucky_stretch_is_no_more_than_noise(prefixsim, tmp_path):
    """The favourite returns only once, at the end: LFU hits it and LRU does not."""
    once = [[200 + 2 * turn, 201 + 2 * turn] for turn in range(150)]
    trace = write_trace(tmp_path / "trace.jsonl", [[1, 2], [1, 2], *once, [1, 2]])
    found, _ = run(prefixsim, trace, "--policy", "lfu", "--kv-capacity", "6blocks",
                   *ONE_AT_A_TIME)  # fmt: skip
    assert found["rows"][0]["policy"] == "lfu"
    assert found["rows"][0]["verdict"] == "noise"
    assert "no policy beats lru by more than noise; highest is lfu" in found["verdicts"][0]


def test_sessions_are_drawn_whole_where_there_are_any(prefixsim):
    found, _ = run(prefixsim, "multi-turn", "--num-requests", 150, "--policy", "fifo",
                   "--kv-capacity", "20%", "--hits-only", "-j", 1)  # fmt: skip
    assert "bootstrap over" in found["method"][1]
    assert "sessions" in found["method"][1]


def test_seeds_are_drawn_where_there_are_many(prefixsim):
    found, _ = run(prefixsim, "shared-prefix", *SMALL, "--policy", "fifo", "--seeds", 3,
                   "--kv-capacity", "20%", "--hits-only")  # fmt: skip
    assert found["method"][1].endswith("paired bootstrap over 3 seeds.")
    assert {row["num_seeds"] for row in found["rows"]} == {3}


def test_runs_have_latency_and_say_where_no_overhead_was_measured(prefixsim):
    found, _ = run(prefixsim, "shared-prefix", *SMALL, "--policy", "vllm_v1,sglang_radix,none",
                   "--kv-capacity", "20%")  # fmt: skip
    rows = {row["policy"]: row for row in found["rows"]}
    assert found["method"][0].startswith("Bound: a cache that never evicts")
    assert rows["lru"]["bound"] == "infinite"
    assert rows["none"]["hit_rate"] == 0
    assert all(row["ttft_ms_mean"] > 0 and row["ttft_ms_p50"] > 0 for row in rows.values())
    measured = {name: row["overhead"] for name, row in rows.items()}
    assert measured == {
        "lru": "not measured",
        "sglang_radix": "not measured",
        "vllm_v1": "vllm-0.8.5-v1",
        "none": "vllm-0.8.5-v1-off",
    }
    assert "Lowest mean TTFT: " in found["verdicts"][0]
    assert rows["vllm_v1"]["overhead_ms"] > 0
    assert rows["lru"]["overhead_ms"] is None


def test_the_rates_of_runs_are_those_of_run(prefixsim):
    options = [*SMALL[:-2], "--kv-capacity", "20%"]
    found, _ = run(prefixsim, "shared-prefix", *options, "-j", 1, "--policy", "fifo")
    for row in found["rows"]:
        _, out, _ = prefixsim("run", "shared-prefix", *options, "--policy", row["policy"], "--json")
        alone = json.loads(out)
        assert row["hit_rate"] == alone["hit_rate"]
        assert row["ttft_ms_mean"] == alone["ttft_ms_mean"]
        assert row["bound_hit_rate"] == alone["infinite_hit_rate"]


def test_options_of_policies_are_tried_with_those_that_have_them(prefixsim, trace):
    found, _ = run(prefixsim, trace, "--policy", "fifo,vllm_v1", "--policy-arg",
                   "leaf_only=false,true", "--kv-capacity", "6blocks", *ONE_AT_A_TIME)  # fmt: skip
    assert found["reference"] == "lru leaf_only=false"
    names = sorted((row["policy"], row["policy_args"]) for row in found["rows"])
    assert names == [
        ("fifo", "leaf_only=false"),
        ("fifo", "leaf_only=true"),
        ("lru", "leaf_only=false"),
        ("lru", "leaf_only=true"),
        ("vllm_v1", ""),
    ]


def test_every_column_is_in_the_docs():
    page = (Path(__file__).parent.parent / "docs" / "compare.md").read_text()
    rows = [f"| `{c.name}` | {c.dtype} | {c.unit} | {c.meaning} |" for c in columns_of("compare")]
    assert "\n".join(rows) in page


# Kept, drawn, gone on with.


@pytest.mark.parametrize("hits_only", [True, False])
def test_a_comparison_goes_on_where_it_stopped(prefixsim, tmp_path, monkeypatch, hits_only):
    args = ["shared-prefix", *SMALL, "--policy", "fifo,arc", "--kv-capacity", "20%,50%"]
    args += ["--hits-only"] if hits_only else []
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert prefixsim("compare", *args, "-o", whole)[0] == 0

    ran = []
    module, name = (processes, "_outcome") if hits_only else (grid, "perform_here")
    plain = getattr(module, name)

    def interrupted(*args, **options):
        if len(ran) == 2:
            raise KeyboardInterrupt
        return counted(*args, **options)

    def counted(*args, **options):
        ran.append(next(one for one in args if isinstance(one, RunConfig)))
        return plain(*args, **options)

    monkeypatch.setattr(module, name, interrupted)
    code, out, err = prefixsim("compare", *args, "-o", parts)
    assert (code, out) == (130, "")
    assert f"interrupted; {parts} keeps what is done" in err

    monkeypatch.setattr(module, name, counted)
    assert prefixsim("compare", *args, "-o", parts)[0] == 0
    assert len(ran) == len(set(ran)) == 6
    for name in ("compare.csv", "compare.parquet", "compare.png", "compare.svg"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()

    assert prefixsim("compare", *args, "-o", parts)[0] == 0
    assert len(ran) == 6
    assert prefixsim("compare", *args, "-o", parts, "--fresh")[0] == 0
    assert len(ran) == 12


def test_the_same_table_whether_kept_or_not(prefixsim, tmp_path):
    args = ["shared-prefix", *SMALL, "--policy", "fifo", "--kv-capacity", "20%", "--hits-only"]
    code, shown, err = prefixsim("compare", *args, "--plot", tmp_path / "picture.svg")
    assert code == 0, err
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")
    assert prefixsim("compare", *args, "-o", tmp_path / "kept")[1] == shown
    for word in ("capacity", "share_of_way", "reference", "fifo", "Bound: Belady's"):
        assert word in shown
    assert "ttft" not in shown


def test_a_policy_that_fails_is_left_out_and_said(prefixsim, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(
        "from policies.lru import Lru\n\n\nclass Broken(Lru):\n"
        "    def match_prefix(self, seq):\n        raise RuntimeError('oh')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    args = ["shared-prefix", *SMALL, "--kv-capacity", "20%", "--hits-only", "--json"]
    code, out, err = prefixsim("compare", *args, "--policy", "broken:Broken,fifo")
    assert code in (1, 2)
    assert "failed" in err
    assert {row["policy"] for row in json.loads(out)["rows"]} == {"lru", "fifo"}
    code, _, err = prefixsim("compare", *args, "--policy", "broken:Broken")
    assert code == 2
    assert "nothing is left to compare" in err


def test_a_broken_file_is_named(prefixsim, tmp_path):
    args = ["shared-prefix", *SMALL, "--policy", "fifo", "--kv-capacity", "20%", "--hits-only"]
    assert prefixsim("compare", *args, "-o", tmp_path)[0] == 0
    file = sorted((tmp_path / "serial").iterdir())[0]
    file.write_bytes(b"no table")
    code, _, err = prefixsim("compare", *args, "-o", tmp_path)
    assert code == 2
    assert f"{file} is broken or cannot be read; delete it" in err


# Bad input.


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--policy", "lru"], "compare has nothing to compare 'lru' with"),
        (["--policy", "lru,,arc"], "--policy 'lru,,arc' has an empty value in its list"),
        (["--policy", "nru"], "--policy 'nru' is not a policy: choose one of"),
        (["--reference", "nru"], "--policy 'nru' is not a policy: choose one of"),
        (["--policy-arg", "leafonly=true"], "has no such option"),
        (["--kv-capacity", "x%"], "--kv-capacity 'x%' is not a capacity"),
        (["--kv-capacity", ""], "--kv-capacity '' has an empty value in its list"),
        (["--seeds", "0"], "--seeds 0 must be at least 1"),
        (["--sessions", "closed", "--hits-only"], "--sessions closed does not go with --hits-only"),
        (["--arrival", "users", "--users", "2", "--sessions", "closed", "--hits-only"],
         "does not go with --hits-only"),
        (["--block-size", "16,32"], "--block-size '16,32' must be a whole number"),
        (["--plot", "picture.txt"], "--plot picture.txt must end in .png, .svg or .pdf"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(prefixsim, args, sentence):
    small = [] if "--policy" in args or "--policy-arg" in args else ["--policy", "fifo"]
    capacity = [] if "--kv-capacity" in args else ["--kv-capacity", "20%"]
    code, out, err = prefixsim("compare", "multi-turn", "--num-requests", 20, "-j", 1, *small,
                               *capacity, *args)  # fmt: skip
    assert (code, out) == (2, "")
    assert sentence in err


def test_seeds_are_for_generators(prefixsim, trace):
    code, _, err = prefixsim("compare", trace, "--seeds", 3, *ONE_AT_A_TIME)
    assert code == 2
    assert "--seeds 3 is for generators" in err


def test_a_workload_without_prefixes_has_nothing_to_compare(prefixsim, tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,300,10\n"
        "2023-11-16 18:15:50.9951690,396,20\n"
    )
    code, _, err = prefixsim("compare", path, "--policy", "fifo", "--kv-capacity", "infinite",
                             "--hits-only", "-j", 1)  # fmt: skip
    assert code == 2
    assert "says nothing about shared prefixes" in err


def test_requests_that_never_fit_are_said(prefixsim, tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", [[1, 2], [1, 2, 3, 4, 5], [1, 2]])
    found, err = run(prefixsim, trace, "--policy", "fifo", "--kv-capacity", "4blocks",
                     *ONE_AT_A_TIME)  # fmt: skip
    assert "1 of 3 requests can never fit in 4 blocks" in err
    assert {row["num_refused"] for row in found["rows"]} == {1}
    assert found["rows"][0]["hit_rate"] == pytest.approx(32 / 66)
    assert found["rows"][0]["bound_hit_rate"] == pytest.approx(32 / 66)
