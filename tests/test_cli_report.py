"""``prefixsim report`` and ``sim.report``: one page of a results folder or a workload."""

import contextlib
import io
import json
import re
import shutil

import pytest

import sim
from sim import cli
from sim.errors import UsageError
from sim.store import ResultStore

DIALS = {"num_requests": 30, "prompt": 64, "output": 4, "num_prefixes": 3}
SMALL = [f"--workload-arg={key}={value}" for key, value in DIALS.items()]
RUNS = [*SMALL, "--policy", "none,vllm_v1", "--block-size", "8,16", "--jobs", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep of eight runs; nobody changes it."""
    path = tmp_path_factory.mktemp("sweep") / "results"
    sim.sweep(
        folder=path, policy=["none", "vllm_v1"], block_size=[8, 16], kv_capacity=[2048, 4096],
        workload_args=DIALS,
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def page_of_folder(folder, tmp_path_factory):
    """The page of all eight runs, and what is printed; nobody changes it."""
    path, out = tmp_path_factory.mktemp("page") / "page.html", io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        cli.main(["report", str(folder), "-o", str(path)])
    assert ended.value.code == 0
    return path, out.getvalue()


def data_of(page):
    """Read what the page knows of its pictures, and its text."""
    text = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    return json.loads(data), text


def test_a_folder_becomes_a_page(folder, page_of_folder):
    page, out = page_of_folder
    pictures, text = data_of(page)
    assert list(pictures) == ["capacity", "block-size", "trade-off", "ttft"]
    row = sim.load(folder).summary
    row = row[(row["policy"] == "vllm_v1") & (row["block_size"] == 8)].iloc[0]
    assert (
        f"With vllm_v1, blocks of 8 and a KV cache of {row['kv_capacity_tokens']:,} tokens" in out
    )
    assert f"{100 * row['hit_rate']:.1f} % of the prompt tokens" in out
    assert text.count("<tr>") == 1 + 8
    assert "prefixsim 0.1.0" in text
    # What is pointed at says what the table says.
    points = {
        point[2]
        for series in pictures["block-size"]["series"]
        for point in series["points"]
        if point[2].startswith("vllm_v1\nhit rate\nblock size (tokens): 8\n")
    }
    assert points == {
        f"vllm_v1\nhit rate\nblock size (tokens): 8\nhit rate (%): {100 * row['hit_rate']:.4g}"
    }


def test_a_sweep_that_was_interrupted_says_what_is_missing(prefixsim, folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "results")
    store = ResultStore(folder)
    summary = store.summaries()
    lost = summary[(summary["policy"] == "vllm_v1") & (summary["block_size"] == 16)]["run_id"]
    for run_id in lost:
        (folder / "runs" / run_id / "run.json").unlink()
    _, _, err = prefixsim("report", folder, "-o", tmp_path / "page.html")
    assert "The sweep is not finished: 6 runs are there and 2 points are missing" in err
    assert "--policy vllm_v1" not in err  # the default is left out of a point's name
    assert "--kv-capacity 2048" in err
    _, text = data_of(tmp_path / "page.html")
    assert "2 points are missing" in text


def test_runs_can_be_chosen(prefixsim, folder, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = prefixsim("report", folder, "-o", page, "--where", "policy=vllm_v1")
    assert code == 0
    assert "What caching buys cannot be said" in out
    _, text = data_of(page)
    assert text.count("<tr>") == 1 + 4
    assert "not finished" not in text


def test_a_workload_runs_what_it_needs_once(prefixsim, tmp_path):
    page, runs = tmp_path / "page.html", tmp_path / "runs"
    args = ["report", "shared-prefix", *RUNS, "--block-size", "8", "--runs", runs, "-o", page]
    code, out, err = prefixsim(*args)
    assert code == 0, err
    pictures, text = data_of(page)
    assert list(pictures)[:2] == ["curve", "workload"]
    assert "With all requests there at once, the engine serves" in out
    assert "One request at a time, the curve bends at" in out
    assert "working_set_tokens" in text
    kept = {path: path.stat().st_mtime_ns for path in runs.rglob("run.json")}
    first = page.read_bytes()
    # They are a results folder like any other; and what else lies in it is not reported.
    assert prefixsim("run", "uniform", *SMALL[:3], "-o", runs)[0] == 0
    assert prefixsim(*args)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert page.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "runs"]
    assert len(sim.load(runs).summary) == len(kept) + 1


def test_capacities_that_are_asked_for_are_run(prefixsim, tmp_path):
    runs = tmp_path / "runs"
    code, _, err = prefixsim(
        "report", "shared-prefix", *RUNS, "--kv-capacity", "4096,1024", "--runs", runs,
        "-o", tmp_path / "page.html",
    )  # fmt: skip
    assert code == 0, err
    summary = sim.load(runs).summary
    as_recorded = summary[summary["arrival"] == "trace"]
    counts = as_recorded.groupby("kv_capacity_tokens").size()
    # Two policies and two block sizes at the first; at the other the recommended size alone.
    assert sorted(counts.tolist()) == [2, 4]
    assert sorted(summary[summary["arrival"] != "trace"]["policy"]) == ["none", "vllm_v1"]


TIERS = [*SMALL, "--policy", "none,vllm_v1", "--block-size", "8", "--jobs", "1"]


def test_a_workload_is_reported_with_tiers_against_none_without(prefixsim, tmp_path):
    runs = tmp_path / "runs"
    code, out, err = prefixsim(
        "report", "shared-prefix", *TIERS, "--kv-capacity", "512", "--host-memory", "4096",
        "--tier-write", "evict", "--runs", runs, "-o", tmp_path / "page.html",
    )  # fmt: skip
    assert code == 0, err
    assert "change" not in err
    assert "instead of" in out
    summary = sim.load(runs).summary
    assert set(zip(summary["policy"], summary["host_capacity_tokens"], strict=True)) == {
        ("none", 0),
        ("vllm_v1", 4096),
    }


def test_a_sweep_over_tiers_is_set_against_none(prefixsim, tmp_path):
    sim.sweep(
        folder=tmp_path / "results", policy=["none", "vllm_v1"], block_size=8,
        kv_capacity=[256, 512], host_memory=["0", "512", "1024"], tier_write=["through", "evict"],
        workload_args=DIALS,
    )  # fmt: skip
    page = tmp_path / "page.html"
    code, out, err = prefixsim("report", tmp_path / "results", "-o", page)
    assert code == 0, err
    assert "Nothing hits" not in out
    assert "without caching" in out
    pictures, _ = data_of(page)
    assert "tiers" in pictures


def test_a_trace_of_lengths_has_no_hit_rate(prefixsim, tmp_path):
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:15:{second:02}.0000000,{100 + second},5" for second in range(30)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    code, out, err = prefixsim(
        "report", path, "--policy", "none,vllm_v1", "--block-size", "16,32", "--jobs", "1",
        "-o", tmp_path / "page.html",
    )  # fmt: skip
    assert code == 0, err
    assert "No hit rate is available" in out
    assert "No block size can be recommended" in out
    assert "No KV capacity can be recommended" in out
    pictures, _ = data_of(tmp_path / "page.html")
    assert "curve" not in pictures


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nope.jsonl"], "'nope.jsonl' is neither a generator"),
        (["empty"], "empty holds no results; make some with 'prefixsim run WORKLOAD -o"),
        (
            ["shared-prefix", "-o", "missing/page.html"],
            "-o missing/page.html cannot be written (No",
        ),
        (["shared-prefix", "-o", "empty"], "-o empty must end in .html."),
        (["shared-prefix", "-o", "folder.html"], "-o folder.html cannot be written (Is a dir"),
        (["shared-prefix", "--where", "block_size=16"], "--where block_size=16 chooses among the"),
        (["shared-prefix", "--policy", "nope"], "--policy 'nope' is not a policy"),
        (["shared-prefix", "--policy", "none,,vllm_v1"], "has an empty value in its list"),
        (["shared-prefix", "--block-size", "0"], "--block-size 0 must be at least 1."),
        (["shared-prefix", "--block-size", "x"], "--block-size 'x' must be a whole number"),
        (["shared-prefix", "--kv-capacity", "much"], "--kv-capacity 'much' is not a capacity"),
        (["shared-prefix", "--jobs", "0"], "--jobs '0' must be a whole number"),
        (["-"], "workload - is a pipe or device, which can be read only once"),
        ([], "missing argument 'DIR|WORKLOAD'"),
    ],
)
def test_bad_input_is_one_sentence(prefixsim, tmp_path, monkeypatch, args, sentence):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "folder.html"):
        (tmp_path / name).mkdir()
    code, _, err = prefixsim("report", *args)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "folder.html"]


@pytest.mark.parametrize(
    "option", [("--policy", "none"), ("--runs", "x"), ("--rate-scale", "2"), ("--block-size", "8")]
)
def test_settings_of_a_workload_have_no_effect_on_a_folder(prefixsim, folder, tmp_path, option):
    code, _, err = prefixsim("report", folder, "-o", tmp_path / "page.html", *option)
    assert code == 2
    assert f"is a results folder, whose runs are what they are, so {option[0]} has no effect" in err
    assert not (tmp_path / "page.html").exists()


def test_a_folder_that_holds_something_else(prefixsim, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "readme.txt").write_text("hello")
    code, _, err = prefixsim("report", tmp_path / "other", "-o", tmp_path / "page.html")
    assert code == 2
    assert "other" in err
    assert "Traceback" not in err


def test_help_says_what_it_takes(prefixsim):
    code, out, _ = prefixsim("report", "--help")
    assert code == 0
    for option in ("--output", "--where", "--runs", "--policy", "--host-memory", "--jobs"):
        assert option in out
    assert "--workload " not in out


def test_python_says_the_same(folder, tmp_path, page_of_folder):
    one = ["policy=vllm_v1", "block_size=8", "seed=0"]
    path = sim.report(folder, tmp_path / "a.html", where=one)
    again = sim.load(folder).report(tmp_path / "b.html")
    made = re.compile(r"With the command <code>(.*?)</code>")
    b, c = (made.sub("", page.read_text()) for page in (again, page_of_folder[0]))
    assert b == c
    assert again == tmp_path / "b.html"
    (command,) = made.findall(path.read_text())
    assert command.startswith("sim.report(")
    assert "where=" in command
    with pytest.raises(UsageError, match="so --policy has no effect"):
        sim.report(folder, tmp_path / "a.html", policy="none")
    with pytest.raises(UsageError, match="must end in"):
        sim.report(folder, tmp_path / "a.txt")
    with pytest.raises(UsageError, match="jobs 0 must be"):
        sim.report("shared-prefix", tmp_path / "a.html", jobs=0)


def test_python_runs_a_workload(tmp_path):
    path = sim.report(
        "shared-prefix",
        tmp_path / "a.html",
        policy=["none", "vllm_v1"],
        block_size=8,
        kv_capacity=4096,
        workload_args=DIALS,
    )
    _, text = data_of(path)
    assert "sim.report(" in text
