"""A package imports only from those above it, and inside a package there is no cycle (docs/architecture.md)."""

import ast
import graphlib
import pathlib

import pytest

SRC = pathlib.Path(__file__).parent.parent / "src" / "tqpo"

ORDER = (
    *(
        "errors",
        "types",
        "provenance",
        "references",
        "maths",
        "networks",
        "physics",
        "envs",
        "host",
        "algorithms",
        "store",
    ),
    *("evaluation", "training", "output", "sweep", "reproduce", "api", "cli"),
)
BORDER = {  # files that import a heavy package when they are imported
    "envs/mujoco.py",
    "envs/gymnasium.py",
    "envs/render.py",
    "output/export/onnx.py",
    "host/bridge/environments.py",
    *(f"host/{name}.py" for name in ("spaces", "own_vector", "workers")),
    *(f"cli/{p.name}" for p in (SRC / "cli").iterdir()),
}
HEAVY = {"mujoco", "gymnasium", "tyro", "matplotlib", "ray", "PIL", "wandb", "tensorboardX", "onnx", "onnxruntime"}
MOST_AT_THE_TOP = 6

FILES = sorted(p for p in SRC.rglob("*.py") if p != SRC / "__init__.py")


def name_of(path: pathlib.Path) -> str:
    """tqpo.maths.quantile of src/tqpo/maths/quantile.py."""
    parts = ("tqpo", *path.relative_to(SRC).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {name_of(p) for p in SRC.rglob("*.py")}


def imports(tree: ast.AST):
    """The modules that a piece of code imports; of `from tqpo.x import y`, y if that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_only_from_above(path):
    own = package_of(name_of(path))
    assert own in ORDER, f"{own} has no row in docs/architecture.md and no place in ORDER"
    for name in imports(ast.parse(path.read_text())):
        other = package_of(name) if name.split(".")[0] == "tqpo" else ""
        if other and other != own:
            assert ORDER.index(other) < ORDER.index(own), f"{own} must not know {other}"


@pytest.mark.parametrize("package", ORDER)
def test_a_package_has_no_cycle(package):
    graph = {}
    for path in FILES:
        if package_of(module := name_of(path)) == package:
            found = {name for name in imports(ast.parse(path.read_text())) if package_of(name) == package}
            graph[module] = found - {module}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_top_level_is_small():
    assert len(list(SRC.glob("*.py"))) <= MOST_AT_THE_TOP


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda p: str(p.relative_to(SRC)))
def test_heavy_packages_are_imported_where_they_are_used(path):
    for node in ast.parse(path.read_text()).body:  # module level only
        for name in imports(node) if isinstance(node, ast.Import | ast.ImportFrom) else ():
            border = path.relative_to(SRC).as_posix() in BORDER
            assert border or name.split(".")[0] not in HEAVY, f"{path.name} imports {name} at import time"


@pytest.mark.parametrize("folder", sorted(p for p in (SRC.parents[1] / "tests").iterdir() if p.is_dir()))
def test_tests_mirror_the_tree(folder):
    assert folder.name in {*ORDER, "reference", "support", "data", "__pycache__"}, (
        f"tests/{folder.name}: there is no such package"
    )
