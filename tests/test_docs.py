"""The documentation: every setting has a meaning, and every command runs as it is written."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).parents[1]


def hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_setting_has_a_default_and_a_meaning():
    rows = [line for line in hooks().reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    for row in rows:
        name, default, *_, meaning = (cell.strip() for cell in row.strip("|").split(" | "))
        assert default, name
        assert meaning, name
    learning_rate = next(row for row in rows if row.startswith("| `learning_rate` "))
    assert "| 0.0003 | `paper`" in learning_rate
    assert ": 0.0001 |" in learning_rate
