"""A module imports only from the rows above its own (docs/architecture.md)."""

import ast
import pathlib

import pytest

SRC = pathlib.Path(__file__).parent.parent / "src" / "tqpo"

ROWS = [
    {"types", "errors"},
    {"quantile", "returns", "multiplier", "gaussian", "distribution", "normalize", "schedule", "weibull", "statistics"},
    {"networks"},
    {"physics", "bridge"},
    {"envs", "hosting"},
    {"rollout"},
    {"algorithms"},
    {"program", "collecting", "acting", "hosted", "evaluation", "store", "events", "provenance", "cluster"},
    {"paper", "figures", "plots", "video", "playback", "report", "bench", "parity", "convergence"},
    {"job", "live", "sinks", "session", "finish", "summary", "api", "ship", "reproduce", "export", "sweep"},
    {"cli"},
]
ROW_OF = {name: i for i, row in enumerate(ROWS) for name in row}
BORDER = {
    "envs/mujoco.py",
    "envs/gymnasium.py",
    "envs/render.py",
    "export/onnx.py",
    "bridge/environments.py",
    *(f"hosting/{name}.py" for name in ("spaces", "guard", "hosts", "own_vector", "ray_vector")),
    *(f"cli/{p.name}" for p in (SRC / "cli").iterdir()),
}
HEAVY = {"mujoco", "gymnasium", "tyro", "matplotlib", "ray", "PIL", "wandb", "onnx", "onnxruntime"}


def module_of(path: pathlib.Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "tqpo":
                yield from (f"tqpo.{alias.name}" for alias in node.names)
            else:
                yield node.module


FILES = sorted(p for p in SRC.rglob("*.py") if p.name not in {"__init__.py", "__main__.py"} or p.parent != SRC)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_only_from_above(path):
    own = module_of(path)
    assert own in ROW_OF, f"{own} has no row in docs/architecture.md and tests/test_layers.py"
    for name in imports(ast.parse(path.read_text())):
        if name.startswith("tqpo."):
            other = name.split(".")[1]
            if other in ROW_OF and other != own:
                assert ROW_OF[other] <= ROW_OF[own], f"{own} must not know {other}"


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda p: str(p.relative_to(SRC)))
def test_heavy_packages_are_imported_where_they_are_used(path):
    for node in ast.parse(path.read_text()).body:  # module level only
        for name in imports(node) if isinstance(node, ast.Import | ast.ImportFrom) else ():
            border = path.relative_to(SRC).as_posix() in BORDER
            assert border or name.split(".")[0] not in HEAVY, f"{path.name} imports {name} at import time"
