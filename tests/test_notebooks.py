"""The notebooks run, say nothing on stderr, show what they say, and hold no logic."""

import ast
import json
import re

import nbformat
import numpy as np
import pytest
from _execute_notebooks import FOLDER, NOTEBOOKS, execute, outputs_of

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
OF_TRACES = [path for path in NOTEBOOKS if "PREFIXSIM_TRACE" in path.read_text(encoding="utf-8")]


def run(path, **environment):
    if path.stem == "4_calibrate":
        pytest.importorskip("torch", reason="torch is not installed: the decoder cannot run")
    return execute(path, PREFIXSIM_QUICK="1", **environment)


LOGIC = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While, ast.If,
    ast.Try, ast.Match, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


def sections(notebook):
    """The cells of each section, by its heading; what is before the first heading by ''."""
    found = {"": []}
    for cell in notebook.cells:
        heading = re.match(r"## (.*)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            found[heading[1]] = []
        found[list(found)[-1]].append(cell)
    return found


def check_shown(notebook):
    """Assert that every section is a question, a picture and an answer with its table."""
    head, *rest = sections(notebook).items()
    assert head[1][0].source.startswith("# ")
    assert 3 <= len(rest) <= 5
    for heading, cells in rest:
        assert heading.endswith("?")
        texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
        assert len(texts) == 2, heading
        question = texts[0].split("\n", 1)[1]
        assert len(question.split()) >= 15, f"{heading}: no prose"
        assert texts[1].startswith("**Answer.** "), heading
        outputs = outputs_of(nbformat.from_dict({"cells": cells}))
        shown = [set(output["data"]) for output in outputs if "data" in output]
        assert len(shown) == 2, heading
        assert "image/png" in shown[0], f"{heading}: no picture"
        assert "text/html" in shown[1], f"{heading}: no table"


def others_of(notebook):
    """The outputs that are not the result of a cell."""
    return [each for each in outputs_of(notebook) if each["output_type"] != "execute_result"]


def is_of_compiling(output):
    """Whether an output says no more than that something is compiled, once on each machine."""
    lines = output.get("text", "?").strip().splitlines()
    return all(line.startswith("prefixsim: compiling ") for line in lines)


@every_notebook
def test_it_runs_quietly_and_shows_what_it_says(path):
    notebook = run(path, PREFIXSIM_TRACE="")
    # An error, or anything on stderr, is an output of another type.
    assert [output for output in others_of(notebook) if not is_of_compiling(output)] == []
    check_shown(notebook)


@pytest.mark.parametrize("path", OF_TRACES, ids=lambda path: path.stem)
def test_it_runs_on_a_trace(path, tmp_path):
    rng = np.random.default_rng(1)
    histories = [[number] for number in range(12)]
    rows = []
    for index in range(120):
        ids = histories[int(rng.integers(12))]
        ids += [1000 + 2 * index, 1001 + 2 * index]
        rows.append(
            {
                "timestamp": 100 * index,
                "input_length": 512 * len(ids) - int(rng.integers(0, 500)),
                "output_length": int(rng.integers(1, 40)),
                "hash_ids": list(ids),
            }
        )
    trace = tmp_path / "mine.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    notebook = run(path, PREFIXSIM_TRACE=str(trace))
    # What is doubtful of a trace may be said.
    assert {output["output_type"] for output in others_of(notebook)} <= {"stream"}
    check_shown(notebook)


@every_notebook
def test_its_outputs_are_stored_and_small(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    check_shown(notebook)
    assert others_of(notebook) == []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert str(FOLDER.parent) not in path.read_text()


def test_all_together_are_small():
    names = ["1_zero_overhead", "2_block_size", "3_capacity", "4_calibrate"]
    assert [path.stem for path in NOTEBOOKS] == names
    assert [path.stem for path in OF_TRACES] == names[:3]
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 600_000


@every_notebook
def test_it_holds_no_logic(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            code = re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE)
            found = [type(node) for node in ast.walk(ast.parse(code)) if isinstance(node, LOGIC)]
            assert found == [], cell.source


@every_notebook
def test_the_index_names_it(path):
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].removeprefix("# ")
    assert f"[{path.name}]({path.name})" in (FOLDER / "README.md").read_text()
    assert title in (FOLDER / "README.md").read_text()
