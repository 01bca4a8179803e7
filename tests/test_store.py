"""A results folder that is broken: one sentence that names the file and what to do."""

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from sim import run_folders
from sim.errors import UsageError
from sim.joined import join

DIALS = ("prompt=64", "output=4", "num_prefixes=1")
RUN = ("--num-requests", 5, *(part for dial in DIALS for part in ("--workload-arg", dial)))
GRID = ("sweep", *RUN, "--policy", "none,vllm_v1", "-j", 1)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Keep a folder of two runs, to be copied."""
    from sim import cli  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("results")
    with pytest.raises(SystemExit):
        cli.main([str(arg) for arg in (*GRID, "-o", folder)])
    return folder


@pytest.fixture
def broken(results, tmp_path):
    """Give a copy of the folder and one of its runs."""
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    return folder, min((folder / "runs").iterdir())


def edit(**values):
    def change(file):
        record = json.loads(file.read_text())
        record["summary"].update(values)
        file.write_text(json.dumps(record))

    return change


def without_a_column(file):
    record = json.loads(file.read_text())
    del record["summary"]["hit_rate"]
    file.write_text(json.dumps(record))


RECORDS = {
    "empty": (lambda file: file.write_text(""), "is empty;"),
    "cut off": (
        lambda file: file.write_text(file.read_text()[:300]),
        "is cut off or no JSON: ",
    ),
    "list": (lambda file: file.write_text("[]"), "is no record of a run;"),
    "other": (lambda file: file.write_text('{"summary": {}}'), "is no record of a run;"),
    "binary": (lambda file: file.write_bytes(b"\xff\xfe\x00"), "is no record of a run;"),
    "copied": (edit(run_id="abc"), "is the record of another run, abc;"),
    "old": (without_a_column, "has no 'hit_rate' in its summary, as of another release"),
    "kind": (edit(block_size="many"), "has a value of the wrong kind in its summary: "),
}


@pytest.mark.parametrize(("harm", "what"), RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("command", ["plot", "sweep"])
def test_a_broken_record_is_named_with_the_next_step(prefixsim, broken, harm, what, command):
    folder, run = broken
    harm(run / "run.json")
    args = ("plot", folder) if command == "plot" else (*GRID, "-o", folder)
    code, out, err = prefixsim(*args)
    assert code == 2
    assert out == ""
    assert f"{run / 'run.json'} {what}" in err
    assert err.endswith(f"; delete the folder {run} and run the same sweep again.\n")
    assert err.count("\n") == 1


def test_the_next_step_mends_the_folder(prefixsim, broken):
    folder, run = broken
    whole = (run / "run.json").read_bytes()
    (run / "run.json").write_text("")
    shutil.rmtree(run)
    assert prefixsim(*GRID, "-o", folder)[0] == 0
    assert (run / "run.json").read_bytes() == whole
    assert prefixsim("plot", folder)[0] == 0


TABLES = {
    "empty": (lambda file: file.write_text(""), "is broken or cannot be read;"),
    "cut off": (
        lambda file: file.write_bytes(file.read_bytes()[:-50]),
        "is broken or cannot be read;",
    ),
    "gone": (Path.unlink, "is missing;"),
    "folder": (lambda file: (file.unlink(), file.mkdir()), "is a folder;"),
}


@pytest.mark.parametrize(("harm", "what"), TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("command", ["plot", "sweep"])
def test_a_broken_table_is_named_with_the_next_step(prefixsim, broken, harm, what, command):
    folder, run = broken
    harm(run / "requests.parquet")
    args = ("plot", folder) if command == "plot" else (*GRID, "-o", folder)
    code, out, err = prefixsim(*args)
    assert code == 2
    assert out == ""
    assert err.splitlines()[-1] == (
        f"prefixsim: error: {run / 'requests.parquet'} {what} delete the folder {run} and run the "
        "same sweep again."
    )


def test_the_table_of_another_run_is_not_drawn(prefixsim, broken):
    folder, run = broken
    other = max((folder / "runs").iterdir())
    shutil.copy(other / "requests.parquet", run)
    code, out, err = prefixsim("plot", folder)
    assert (code, out) == (2, "")
    assert f"{run / 'requests.parquet'} holds rows of another run, {other.name};" in err


def test_what_an_interrupted_run_left_is_no_run(prefixsim, broken):
    folder, run = broken
    shutil.copytree(run, folder / "runs" / ".part-abc")
    code, out, _ = prefixsim(*GRID, "-o", folder, "--json")
    assert code == 0
    assert len(json.loads(out)) == 2


def test_pictures_that_cannot_be_written(prefixsim, broken, tmp_path):
    folder, _ = broken
    (folder / "plots").write_text("mine")
    code, _, err = prefixsim("plot", folder)
    assert code == 2
    assert err.splitlines()[-1] == (
        f"prefixsim: error: {folder / 'plots'} cannot be written (File exists); move it out of the "
        "way, or name another folder for the pictures with --output."
    )
    (tmp_path / "full" / "ttft.png").mkdir(parents=True)
    code, _, err = prefixsim("plot", folder, "-o", tmp_path / "full")
    assert code == 2
    assert f"{tmp_path / 'full' / 'ttft.png'} cannot be written (Is a directory);" in err
    assert (folder / "plots").read_text() == "mine"


def test_tables_that_cannot_be_written(prefixsim, broken):
    folder, _ = broken
    (folder / "summary.csv").unlink()
    (folder / "summary.csv").mkdir()
    code, _, err = prefixsim(*GRID, "-o", folder)
    assert code == 2
    assert f"-o {folder} cannot be written (Is a directory); name a folder that can." in err


def test_a_folder_that_cannot_be_read(prefixsim, broken, monkeypatch):
    folder, _ = broken

    def refuse(path):
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    code, _, err = prefixsim("plot", folder)
    assert code == 2
    assert err == (
        f"prefixsim: error: {folder / 'runs'} cannot be read (Permission denied); name a results "
        "folder that can.\n"
    )


def test_plot_says_what_it_leaves_out_and_how_to_choose(prefixsim, tmp_path):
    more = ("--block-size", "8,16", "--kv-capacity", "512", "--rate-scale", "1,2,4,8")
    assert prefixsim(*GRID, *more, "-o", tmp_path)[0] == 0
    code, out, err = prefixsim("plot", tmp_path)
    assert code == 0
    names = [Path(line).name for line in out.split()]
    assert "against-rate_scale.png" in names
    assert "warning: ttft, against-rate_scale: not shown: block size 16.\n" in err
    assert "choose what is shown with --where NAME=VALUE" in err
    code, out, err = prefixsim(
        "plot", tmp_path, "--against", "rate-scale", "--where", "block_size=16"
    )
    assert code == 0
    assert [Path(line).name for line in out.split()] == [
        "against-rate_scale.png",
        "against-rate_scale.svg",
    ]
    assert err == "prefixsim: 2 files drawn.\n"
    code, out, err = prefixsim("plot", tmp_path, "--where", "block_size=32")
    assert code == 2
    assert err == ("prefixsim: error: --where block_size=32: no run has it; choose one of 8, 16.\n")


def test_tables_of_all_runs_are_joined_run_by_run_in_parquet_and_csv(tmp_path):
    texts = ["plain", 'with "quotes", and a comma']
    for last in texts:
        parts = [
            pa.table({"id": ["a", text], "n": [1, 2], "x": [0.5, None], "y": [1e-9, 1e22]})
            for text in ("b", last)
        ]
        # Columns of another order or width come out as those of the first.
        parts[1] = parts[1].select(["y", "x", "n", "id"])
        parts[1] = parts[1].set_column(2, "n", parts[1]["n"].cast(pa.int32()))
        join(lambda parts=parts: iter(parts), tmp_path / "t.parquet", tmp_path / "t.csv")
        whole = pd.DataFrame(
            {"id": ["a", "b", "a", last], "n": [1, 2] * 2, "x": [0.5, None] * 2,
             "y": [1e-9, 1e22] * 2}
        )  # fmt: skip
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), whole)
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), whole)
        assert ('"a"' in (tmp_path / "t.csv").read_text()) == (last != "plain")


def test_a_run_that_cannot_be_written_whole_leaves_nothing_behind(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        run_folders.write_files(tmp_path, "abc", {"requests.parquet": b"1", "no/such": b"2"})
    assert not [*run_folders.runs_of(tmp_path).iterdir()]
