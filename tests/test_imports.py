"""Who may import whom, and what a reproducible simulation must not use. Read from the source."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sim", "policies", "workloads", "gpu_backend")
COMPOSERS = (
    "sim.cli", "sim.__main__", "sim.grid", "sim.experiment", "sim.demand", "sim.inputs",
    "sim.doubts", "sim.identity", "sim.api",
    "sim.explained", "sim.engines", "sim.verify", "sim.prove", "sim.calibrate", "sim.validate",
    "sim.curves", "sim.backends", "sim.comparison", "sim.processes", "sim.reported",
    "sim.tiering",
)  # fmt: skip
"""Modules of sim that put the packages together; the rest of it knows none of them."""
MAY_MEASURE_WALL_TIME = ("sim.cli", "sim.grid", "sim.experiment", "sim.overhead", "gpu_backend")


def sources():
    """Every module by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


SOURCES = sources()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}
every_module = pytest.mark.parametrize("module", SOURCES)


def belongs(module, names):
    """Whether a module is one of these, or lies in or beside it by name (sim.cli, sim.cli.run)."""
    return any(module == name or module.startswith((f"{name}.", f"{name}_")) for name in names)


def imports(module):
    """Every module that a module imports anywhere, ``from a import b`` as a.b where that is one."""
    found = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in SOURCES else node.module)
    return found


def test_all_packages_are_read():
    assert {name.split(".")[0] for name in SOURCES} == set(PACKAGES)
    assert {"sim.types", "sim.engine", "policies.vllm_v1", "workloads.mooncake"} <= set(SOURCES)


@every_module
def test_imports_go_one_way(module):
    ours = {name for name in imports(module) if name.split(".")[0] in PACKAGES}
    package = module.split(".")[0]
    allowed = {
        "policies": ("policies", "sim.types", "sim.errors"),
        "workloads": ("workloads", "sim.types", "sim.errors", "sim.mapped", "sim.compiled"),
        "gpu_backend": ("gpu_backend", "sim.types", "sim.cost", "sim.errors"),
        "sim": PACKAGES if belongs(module, COMPOSERS) else ("sim",),
    }[package]
    assert [name for name in sorted(ours) if not belongs(name, allowed)] == []


def test_curves_are_numbers_only():
    used = {
        name for module in SOURCES if belongs(module, ("sim.curve",)) for name in imports(module)
    }
    ours = {name for name in used if name.split(".")[0] in PACKAGES}
    assert [
        n
        for n in sorted(ours)
        if not belongs(n, ("sim.curve", "sim.types", "sim.mapped", "sim.compiled"))
    ] == []


@every_module
def test_kernels_call_only_kernels_of_their_own_package(module):
    """What is compiled anew when they change is a package: see `sim.compiled`."""
    used = {name for name in imports(module) if name.endswith(".compiling")}
    assert used <= {module.rpartition(".")[0] + ".compiling"}
    if used and any(
        isinstance(node, ast.FunctionDef) and node.decorator_list for node in TREES[module].body
    ):
        home = module.rpartition(".")[0]
        kernels = {n for n in imports(module) if n in SOURCES and not belongs(n, (home,))}
        assert not [n for n in kernels if any(i.endswith(".compiling") for i in imports(n))]


def test_an_engine_runs_without_the_composers():
    needed, todo = set(), ["sim.engine", "sim.results"]
    while todo:
        module = todo.pop()
        if module in SOURCES and module not in needed:
            needed.add(module)
            todo += imports(module)
    assert {"sim.types", "sim.scheduler", "sim.recorder"} <= needed
    assert [module for module in sorted(needed) if belongs(module, COMPOSERS)] == []


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("torch", ("gpu_backend",)),
        ("simpy", ("sim.engine",)),
        ("matplotlib", ("sim.plots", "sim.api", "sim.curves", "sim.comparison")),
        ("numba", ("sim.compiled",)),
        ("orjson", ("workloads.batches",)),
        ("llvmlite", ("sim.compiled",)),
        ("typer", ("sim.cli", "sim.__main__")),
        ("rich", ("sim.cli", "sim.__main__")),
        ("joblib", ("sim.backends", "sim.processes", "sim.cli.options")),
        ("distributed", ("sim.backends.on_dask",)),
        ("ray", ("sim.backends.on_ray",)),
    ],
)
def test_each_library_has_its_home(library, homes):
    users = [module for module in SOURCES if library in {n.split(".")[0] for n in imports(module)}]
    assert [module for module in users if not belongs(module, homes)] == []


EXTRA_LIBRARIES = {
    "workloads.source": {"pyarrow"},  # zstd
    "workloads.batches": {"orjson"},
    "workloads.tokenizer": {"tokenizers", "tiktoken"},
}


@every_module
def test_policies_workloads_and_types_need_only_numpy(module):
    if module == "sim.types" or module.split(".")[0] in ("policies", "workloads"):
        libraries = {name.split(".")[0] for name in imports(module)}
        others = libraries - set(sys.stdlib_module_names) - set(PACKAGES) - {"numpy"}
        assert others <= EXTRA_LIBRARIES.get(module, set())


def dotted(node):
    """Spell ``a.b.c``, or nothing if it is no such thing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


WALL_CLOCKS = ("time.time", "datetime.now", "datetime.datetime.now", "uuid.uuid4")
SEEDED = ("default_rng", "Generator", "SeedSequence", "BitGenerator", "PCG64", "Philox")


@every_module
def test_results_depend_on_nothing_but_the_input(module):
    if module.split(".")[0] == "gpu_backend":
        return
    assert "random" not in imports(module)
    assert "secrets" not in imports(module)
    if not belongs(module, MAY_MEASURE_WALL_TIME):
        assert "time" not in imports(module)
    for node in ast.walk(TREES[module]):
        where = f"{module}:{getattr(node, 'lineno', 0)}"
        name = dotted(node)
        if name.startswith(("np.random.", "numpy.random.")):
            assert name.split(".")[2] in SEEDED, f"{where}: {name} is global state"
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            # Differs from process to process for text.
            # Timed there, and never used.
            assert called != "hash" or module == "sim.overhead.driver", f"{where}: hash()"
            assert called not in (
                "time.time",
                "datetime.now",
                "datetime.datetime.now",
                "uuid.uuid4",
            )
            if called.endswith("random.default_rng"):
                assert node.args or node.keywords, f"{where}: default_rng() without a seed"
