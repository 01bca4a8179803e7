"""Kernels: compiled once per machine and version, found again, and called without numba."""

import importlib.util
import subprocess
import sys
from ctypes import ArgumentError
from typing import NamedTuple

import numpy as np
import pytest

from sim.compiled.machine_code import MachineCode

KERNELS = """
from pathlib import Path
from sim.compiled import Package

package = Package(Path(__file__).parent, "a test", "no time")

@package.compiled
def twice(number):
    return 2 * number

@package.entry
def triple(number):
    return twice(number) + number

@package.bare_entry
def total(rules, state, number):
    state.sums[0].count += 1
    result = twice(number)
    for index in range(len(state.values)):
        for other in range(state.values.shape[1]):
            result += state.values[index, other] * (2 if rules.doubles else 1)
    return result + int(rules.factor * 10)
"""


class Rules(NamedTuple):
    doubles: bool
    factor: float


class State(NamedTuple):
    values: np.ndarray
    sums: np.ndarray


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """Load the kernels, as every process does anew."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "some"
    folder.mkdir()
    path = folder / "kernels_of_this_test.py"
    path.write_text(KERNELS)

    def load(text=KERNELS):
        if text != path.read_text():
            path.write_text(text)
        spec = importlib.util.spec_from_file_location("kernels_of_this_test", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def state(count=3):
    return State(np.arange(2 * count).reshape(count, 2), np.zeros(1, dtype=[("count", np.int64)]))


def test_compiling_is_said_once_and_then_never_again(kernels, capsys):
    """The second time the machine code comes from the disk, as it does in the next process."""
    for said in ("prefixsim: compiling a test, once; this takes no time.\n", ""):
        module = kernels()
        assert module.triple(2) == 6
        assert module.triple(2.5) == 7.5
        assert module.triple(3) == 9
        assert module.total(Rules(False, 0.5), state(), 100) == 200 + 15 + 5
        assert capsys.readouterr().err == said


def test_machine_code_takes_arguments_as_python_does(kernels):
    total = kernels().total
    first, second = state(), state(5)
    assert total(Rules(True, 1.0), first, -7) == -14 + 30 + 10
    assert total(Rules(True, 1.0), second, 7) == 14 + 90 + 10
    rules = Rules(False, 0.0)
    for number in (0, 1, 2**40):
        assert total(rules, first, number) == 2 * number + 15
    first.values[0, 0] = 1000
    assert total(rules, first, 0) == 1015
    assert first.sums["count"].tolist() == [5]
    assert second.sums["count"].tolist() == [1]
    # Arrays of another type are other code.
    assert total(rules, State(np.ones((2, 2), np.int32), first.sums), 0) == 4


def test_machine_code_refuses_what_it_would_misread(kernels):
    total = kernels().total
    with pytest.raises(AssertionError):
        total(Rules(True, 1.0), State(np.ones((4, 4), np.int64)[:, :2], state().sums), 0)
    with pytest.raises(KeyError):
        total(Rules(np.True_, 1.0), state(), 0)
    rules, some = Rules(True, 1.0), state()
    assert total(rules, some, 0) == 40
    with pytest.raises(ArgumentError, match="wrong type"):
        total(rules, some, 0.5)


def test_an_error_in_machine_code_is_an_error():
    def divide(rules, number):
        return rules.a // number

    class One(NamedTuple):
        a: int

    code = MachineCode(divide, lambda: None, lambda: None)
    assert code(One(7), 2) == 3
    with pytest.raises(RuntimeError, match="divide ended with status"):
        code(One(7), 0)


def test_where_nothing_can_be_kept_every_process_compiles(kernels, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    module = kernels()
    assert module.package.folder is None
    assert module.triple(2) == 6
    assert module.total(Rules(False, 0.5), state(), 100) == 220
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "in every process, since no cache folder is writable" in said


def test_code_is_kept_per_user_and_by_all_files_of_the_package(kernels, monkeypatch, tmp_path):
    folder = kernels().package.folder
    assert folder.parent == tmp_path / "cache"
    assert kernels().package.folder == folder
    (tmp_path / "some" / "other.py").write_text("LIMIT = 1\n")
    assert kernels().package.folder != folder
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of user"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert kernels().package.folder.parent == tmp_path / "of user" / "prefixsim"


def test_a_helper_that_changed_changes_what_calls_it(kernels):
    assert kernels().triple(2) == 6
    assert kernels(KERNELS.replace("return 2 * number", "return 20 * number")).triple(2) == 42


def test_a_fast_run_imports_no_numba():
    """Once compiled; the first run of all may have to compile."""
    code = (
        "import sys; from sim.cli import main\n"
        "try: main(['run', 'shared-prefix', '--engine', 'fast', '--json'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print([m for m in ('numba', 'pandas', 'scipy', 'pyarrow', 'matplotlib')"
        " if m in sys.modules])"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
    assert done.stdout.splitlines()[-1] == "[]"
