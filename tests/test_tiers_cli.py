"""Tiers as a user asks for them: settings, tables, warnings, pictures."""

import json
import math
import re
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest
from plotted import legend, summary_of, title

from sim import plots
from sim.capacity import is_nothing, num_tier_blocks
from sim.columns import columns_of
from sim.config import RunConfig, option_name, settings
from sim.errors import UsageError
from sim.experiment import check, run
from sim.identity import run_id_of
from sim.store import ResultStore

# Conversations of 10,000 tokens in a cache of 1,000, so that most is lost by the next turn.
SMALL = {
    "workload": "multi-turn",
    "num_requests": 30,
    "workload_args": {"prompt": 256, "output": 8, "num_prefixes": 2},
    "kv_capacity": "3200",
}
OPTIONS = (
    *("--num-requests", 30, "--workload-arg", "prompt=256", "--workload-arg", "output=8"),
    *("--workload-arg", "num_prefixes=2", "--kv-capacity", 3200),
)
TIERS = {"host_memory": "infinite", "host_bandwidth": 100.0}


@pytest.fixture(scope="module")
def alone():
    return run(RunConfig(**SMALL, engine="plain"))


@pytest.fixture(scope="module")
def tiered():
    return run(RunConfig(**SMALL, **TIERS))


# Settings.


@pytest.mark.parametrize(
    ("capacity", "num_blocks"),
    [
        ("0", 0),
        ("0GiB", 0),
        ("160", 10),
        ("10000blocks", 10_000),
        ("2GiB", 1024),
        ("50%", 312),
        ("infinite", 3),
    ],
)
def test_capacity_of_a_tier(capacity, num_blocks, request_of_50_tokens):
    assert is_nothing(capacity) == (num_blocks == 0)
    assert (
        num_tier_blocks(
            "--ssd",
            capacity,
            16,
            [request_of_50_tokens],
            num_distinct_tokens=lambda: 10_000,
            num_bytes_per_token=lambda: 131_072,
        )
        == num_blocks
    )


@pytest.fixture
def request_of_50_tokens():
    from helpers import requests_of  # noqa: PLC0415

    return requests_of((list(range(50)), [1]))[0]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host_memory": "auto"}, "--host-memory 'auto' is not a capacity: give tokens"),
        ({"ssd": "many"}, r"--ssd 'many' is not a capacity: .* \(5%\), 'infinite' or 0."),
        ({"host_memory": "5"}, "--host-memory '5' is less than one block of --block-size 16"),
        ({"host_memory": "1.5blocks"}, "--host-memory '1.5blocks' must be a whole number of"),
    ],
)
def test_a_bad_capacity_is_named_with_its_option(settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        run(RunConfig(**SMALL, **settings))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host_bandwidth": 0}, "--host-bandwidth 0.0 must be at least 1e-06."),
        ({"ssd_latency": 1e300}, "--ssd-latency 1e[+]300 must be at most 1e[+]09."),
        ({"ssd_latency": -1}, "--ssd-latency -1.0 must be at least 0."),
        ({"tier_write": "back"}, "--tier-write 'back' must be one of through, evict."),
    ],
)
def test_a_bad_setting_is_named(settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        RunConfig(**settings)


def test_runs_without_tiers_keep_their_names():
    names = ("host_memory", "host_bandwidth", "host_latency", "ssd", "tier_write")
    plain = RunConfig().to_dict()
    assert not any(name in plain for name in names)
    assert RunConfig(host_memory="0GiB") == RunConfig(ssd="0blocks") == RunConfig()
    other = {run_id_of(RunConfig(**{name: value})) for name, value in TIERS.items()}
    assert len({run_id_of(RunConfig()), *other}) == 3
    assert RunConfig(**RunConfig(**TIERS).to_dict()) == RunConfig(**TIERS)


# What comes out.


def test_hit_rates_of_the_tiers_are_those_of_the_run(tiered, alone):
    row = tiered.summary
    assert list(row) == [column.name for column in columns_of("summary")]
    parts = [row[f"{name}_hit_rate"] for name in ("device", "host", "ssd")]
    assert sum(parts) == pytest.approx(row["hit_rate"])
    assert row["host_hit_rate"] > 0.2
    assert row["ssd_hit_rate"] == 0
    assert row["ttft_ms_mean"] < alone.summary["ttft_ms_mean"]
    assert alone.summary["device_hit_rate"] == alone.summary["hit_rate"]
    assert alone.summary["load_s"] == alone.summary["host_read_gb"] == 0


def test_bytes_are_those_of_the_blocks(tiered):
    row = tiered.summary
    # 128 KiB a token of Llama-3-8B; nobody was preempted, so only first admissions loaded.
    assert row["num_preemptions"] == 0
    assert row["host_read_gb"] == pytest.approx(row["num_host_tokens"] * 131_072 / 1e9)
    requests = tiered.requests
    assert requests["num_host_tokens"].sum() == row["num_host_tokens"]
    # No two loads shared a step.
    assert requests["load_ms"].sum() / 1e3 == pytest.approx(row["load_s"])
    # Latency, and bytes over bandwidth, of a request that was alone in its step.
    first = requests[requests["num_host_tokens"] > 0].iloc[0]
    own_ms = 0.02 + first["num_host_tokens"] * 131_072 / 100e9 * 1e3
    assert first["load_ms"] == pytest.approx(own_ms, rel=1e-4)


def test_a_slow_tier_is_not_read_and_the_run_is_as_without(alone):
    slow = run(RunConfig(**SMALL, host_memory="infinite", host_bandwidth=0.001))
    assert slow.summary["num_recomputed_tokens"] > 0
    changed = {name for name, value in slow.summary.items() if value != alone.summary[name]}
    assert changed == {
        "run_id", "host_capacity_tokens", "host_bandwidth", "num_recomputed_tokens",
        "host_written_gb",
    }  # fmt: skip


def test_a_policy_that_caches_nothing_has_nothing_to_lose():
    found = run(RunConfig(**SMALL, policy="none", **TIERS))
    (sentence,) = [said for said in found.warnings if "--host-memory" in said]
    assert sentence.startswith("--host-memory and --ssd change nothing with --policy none: it")
    assert found.summary["host_capacity_tokens"] == 0


def test_settings_without_a_tier_are_said_to_change_nothing():
    found = run(RunConfig(**SMALL, ssd_latency=5, ssd_bandwidth=1, tier_write="evict"))
    assert found.warnings[-2:] == (
        "--ssd-bandwidth and --ssd-latency change nothing at --ssd 0.",
        "--tier-write changes nothing at --host-memory 0 and --ssd 0.",
    )


def test_a_tier_that_holds_what_the_gpu_holds_is_doubted():
    small = {**SMALL, "host_memory": "3200"}
    doubted = run(RunConfig(**small))
    assert doubted.warnings[-1].startswith("--host-memory holds 200 blocks, no more than the GPU's")
    assert not any(
        "written through" in said for said in run(RunConfig(**small, tier_write="evict")).warnings
    )


def test_the_fast_engine_says_that_it_has_no_tiers():
    with pytest.raises(UsageError, match="memory below the GPU has no compiled form; choose plain"):
        check(RunConfig(**TIERS, engine="fast"))


def test_a_policy_from_outside_has_tiers_too(tmp_path, monkeypatch, tiered):
    (tmp_path / "quiet_policy.py").write_text(
        "from policies.vllm_v1 import VllmV1\n\n\n"
        "class Quiet:\n"
        "    def __init__(self, **options):\n"
        "        self._inner = VllmV1(**options)\n"
        "        self.num_blocks = self._inner.num_blocks\n"
        "        self.block_size = self._inner.block_size\n"
        + "".join(
            f"\n    def {name}(self, *args):\n        return self._inner.{name}(*args)\n"
            for name in (
                *("match_prefix", "allocate", "cache_blocks", "free", "usage", "block_table"),
                "max_request_blocks",
            )
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "quiet_policy", raising=False)
    outside = RunConfig(**SMALL, **TIERS, policy="quiet_policy:Quiet", overhead="vllm-0.8.5-v1")
    check(outside)
    found = run(outside)
    assert found.summary["host_hit_rate"] == tiered.summary["host_hit_rate"]
    assert found.summary["ttft_ms_mean"] == tiered.summary["ttft_ms_mean"]
    evict = RunConfig(**{**outside.to_dict(), "tier_write": "evict"})
    with pytest.raises(UsageError, match=r"does not tell what it evicts; give it a method tell_ev"):
        check(evict)


def test_timing_measures_the_policy_behind_which_the_tiers_stand():
    found = run(RunConfig(**SMALL, **TIERS), timed=True)
    assert (found.timing["calls"] > 0).all()


def test_results_from_before_there_were_tiers_are_read(tmp_path):
    store = ResultStore(tmp_path)
    store.write(run(RunConfig(**SMALL)))
    (file,) = (tmp_path / "runs").glob("*/run.json")
    record = json.loads(file.read_text())
    late = [name for name in record["summary"] if name.startswith(("host_", "ssd_", "device_"))]
    late += ["tier_write", "load_s", "num_host_tokens", "num_ssd_tokens", "num_recomputed_tokens"]
    for name in late:
        del record["summary"][name]
    file.write_text(json.dumps(record))
    old = pd.read_parquet(file.parent / "requests.parquet")
    late = ["num_host_tokens", "num_ssd_tokens", "num_recomputed_tokens", "load_ms"]
    old.drop(columns=late).to_parquet(file.parent / "requests.parquet", index=False)
    (row,) = store.summaries().to_dict("records")
    assert row["device_hit_rate"] == row["hit_rate"] > 0
    assert row["host_bandwidth"] == 25
    assert row["tier_write"] == "through"
    assert list(store.requests()) == [column.name for column in columns_of("requests")]
    assert store.requests()["num_host_tokens"].sum() == 0


# The command line.


def test_run_shows_what_the_tiers_gave(prefixsim):
    code, out, _ = prefixsim("run", "multi-turn", *OPTIONS, "--host-memory", "8GiB")
    assert code == 0
    assert "host_hit_rate" in out
    assert "host_written_gb" in out
    assert "ssd_hit_rate" not in out
    assert "device_hit_rate" not in prefixsim("run", "multi-turn", *OPTIONS)[1]


def test_tiers_are_swept_from_options_and_toml(prefixsim, tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text('workload = "multi-turn"\nhost-memory = ["0", "infinite"]\n')
    code, out, err = prefixsim(
        *("sweep", grid, "-o", tmp_path / "out", *OPTIONS, "-j", 1),
        *("--tier-write", "through,evict", "--host-bandwidth", "100"),
    )
    assert code == 0, err
    assert out.count("vllm_v1") == 4
    assert "device_hit_rate" in out
    code, out, _ = prefixsim("plot", tmp_path / "out", "--kind", "tiers")
    assert code == 0
    assert out.splitlines()[0].endswith("tiers.png")


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_help_names_the_options(prefixsim, command):
    _, out, _ = prefixsim(command, "--help")
    for option in ("--host-memory", "--host-bandwidth", "--host-latency", "--ssd", "--tier-write"):
        assert option in out


# The picture.


def rows(sizes=(0, 1000, 2000), **same):
    return [
        {
            "host_capacity_tokens": size,
            "hit_rate": 0.1 + size / 10_000,
            "device_hit_rate": 0.1,
            "host_hit_rate": size / 10_000,
            "num_prompt_tokens": 10_000,
            **same,
        }
        for size in sizes
    ]


def bars(ax):
    """Bottom and height of every bar by label, in %."""
    return {
        box.get_label(): [(round(bar.get_y(), 6), round(bar.get_height(), 6)) for bar in box]
        for box in ax.containers
    }


def test_bars_are_stacked_from_the_gpu_down():
    figure = plots.KINDS["tiers"](summary_of(*rows(), *rows(policy="none")), None)
    (ax,) = figure.axes
    found = bars(ax)
    assert found["GPU"] == [(0, 10)] * 3
    assert found["host memory"] == [(10, 0), (10, 10), (10, 20)]
    assert [text.get_text() for text in ax.texts] == ["10.0", "20.0", "30.0"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1k", "2k"]
    assert legend(figure) == ["GPU", "host memory", "ceiling: infinite cache"]
    assert ax.get_ylabel() == "hit rate (%)"


def test_what_is_quicker_to_compute_stands_above_the_hits():
    figure = plots.KINDS["tiers"](summary_of(*rows(num_recomputed_tokens=500)), None)
    (ax,) = figure.axes
    found = bars(ax)["in a tier, but quicker to compute"]
    assert found == [(10, 5), (20, 5), (30, 5)]


def test_another_setting_makes_panels():
    table = summary_of(*rows(), *rows(tier_write="evict"), *rows(sizes=[0, 1000], seed=1))
    figure = plots.KINDS["tiers"](table, None)
    assert [ax.get_title("left") for ax in figure.axes] == [
        "vllm_v1, tier_write evict",
        "vllm_v1, tier_write through",
    ]
    assert "tiers" in plots.applicable(table)


def test_an_ssd_makes_the_bars_where_host_memory_does_not_vary():
    table = summary_of(
        *({"ssd_capacity_tokens": size, "ssd_hit_rate": size / 1e4} for size in (0, 2000))
    )
    figure = plots.KINDS["tiers"](table, None)
    assert figure.axes[0].get_xlabel() == "SSD (tokens)"
    assert title(figure).startswith("Where hits come from, by SSD\n")


def test_without_two_capacities_there_is_no_picture():
    table = summary_of(*rows(sizes=[1000]))
    assert "tiers" not in plots.applicable(table)
    with pytest.raises(UsageError, match="sweep --host-memory over several values"):
        plots.KINDS["tiers"](table, None)
    unknown = summary_of(*rows(hit_rate=math.nan, infinite_hit_rate=math.nan))
    assert "tiers" not in plots.applicable(unknown)


# The page.

PAGE = Path(__file__).parents[1] / "docs" / "tiers.md"


def test_the_page_says_what_its_command_gives(prefixsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands, table = re.findall(
        r"```console\n(.*?)```.*?(\| host memory .*?)\n\n", PAGE.read_text(), re.DOTALL
    )[0]
    sweep, plot = (shlex.split(line)[1:] for line in commands.replace("\\\n", " ").splitlines())
    code, out, err = prefixsim(*sweep, "-j", 1, "--json")
    assert code == 0, err
    found = {
        (row["host_capacity_tokens"] * 131_072 // 2**30, row["tier_write"]): row
        for row in json.loads(out)
    }
    said = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert len(said) == 7
    for capacity, write, *figures in said:
        row = found[int(capacity.removesuffix(" GiB")), write]
        assert figures == [
            *(f"{row[f'{name}hit_rate']:.4f}" for name in ("", "device_", "host_")),
            *(f"{row[name]:.1f}" for name in ("host_read_gb", "host_written_gb", "ttft_ms_mean")),
        ]
    assert prefixsim(*plot)[0] == 0


def test_the_page_names_settings_that_there_are():
    options = set(re.findall(r"--[a-z][a-z-]+", PAGE.read_text())) - {"--kind"}
    assert options <= {option_name(field.name) for field in settings()}
