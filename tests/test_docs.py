"""The documentation: every setting has a meaning, and every command runs as it is written.

The blocks of a page run one after the other in one folder, `bash` and `python`. A comment on the line before a block,
which readers do not see, says more about it:

    <!-- slow -->                            it runs in `make test-slow` only, after the fast ones of its page
    <!-- slow, with 5e6 = 5e4 -->            the same, with the text 5e6 replaced
    <!-- slow, needs optuna -->              where that package is installed
    <!-- skip: needs a cluster -->           it does not run; the reason

A block whose first line is `# NAME.py` or `# NAME.toml` becomes that file.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs" / "reproduction.md")  # half written by a command, and its commands need a GPU
FENCE = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w-]+\.(?:py|toml))\n")


class Block(NamedTuple):
    line: int
    note: str
    language: str
    code: str

    @property
    def parts(self) -> list[list[str]]:
        return [part.split() for part in self.note.split(", ") if part]

    @property
    def skipped(self) -> bool:
        return self.note.startswith("skip: ")

    @property
    def slow(self) -> bool:
        return ["slow"] in self.parts

    @property
    def runs(self) -> bool:
        return self.language in {"bash", "python"} and not self.skipped and not FILE.match(self.code)


def blocks_of(page: pathlib.Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [Block(1 + text.count("\n", 0, m.start(2)), m[1] or "", m[2], m[3]) for m in FENCE.finditer(text)]


def name_of(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


def run_page(page: pathlib.Path, folder: pathlib.Path, slow: bool) -> None:
    """Runs the blocks of a page, without the slow ones or with them."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for block in blocks_of(page):
        if file := FILE.match(block.code):
            (folder / file[1]).write_text(block.code)
        if not block.runs or (block.slow and not slow):
            continue
        code = block.code
        for kind, *rest in block.parts:
            if kind == "with":
                assert rest[0] in code, f"{name_of(page)}:{block.line}: there is no {rest[0]} to replace"
                code = code.replace(rest[0], rest[2])
            if kind == "needs" and not importlib.util.find_spec(rest[0]):
                break
        else:
            run(code, block.language, folder, f"{name_of(page)}:{block.line}")


def run(code: str, language: str, folder: pathlib.Path, where: str) -> None:
    bin_folder = pathlib.Path(sys.executable).parent
    script = folder / f".block.{'py' if language == 'python' else 'sh'}"
    script.write_text(code)
    env = os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{folder}",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"),
    }
    command = [sys.executable, str(script)] if language == "python" else ["bash", "-euo", "pipefail", str(script)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{where} failed\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_language_and_reads(page):
    for block in blocks_of(page):
        where = f"{name_of(page)}:{block.line}"
        assert block.language, f"{where}: a language, or text"
        if block.note and block.runs:
            assert all(part[0] in {"slow", "needs", "with"} for part in block.parts), f"{where}: {block.note}"
        if block.language == "python" and not block.skipped:
            compile(block.code, where, "exec")


def anchors_of(page: pathlib.Path) -> set[str]:
    """The headings of a page as links name them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", head.encode("ascii", "ignore").decode()).strip().lower() for head in heads)
    return {re.sub(r"[-\s]+", "-", head) for head in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link:
            assert target.exists(), link
            assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_at_most_120_long(page):
    if page.name == "parity.md":
        return  # written by `python -m reference.parity`
    text = FENCE.sub("", page.read_text("utf-8"))
    lines = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|") and " " in line.strip()]
    assert lines == []


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.runs and not b.slow for b in blocks_of(p))], ids=name_of)
def test_commands_run_as_written(page, tmp_path):
    run_page(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.runs and b.slow for b in blocks_of(p))], ids=name_of)
def test_slow_commands_run_as_written(page, tmp_path):
    run_page(page, tmp_path, slow=True)


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
    assert "| 0.0003; 0.001 (budget) |" in learning_rate
    assert ": 0.0001 |" in learning_rate


def test_nobody_is_sent_to_an_index_that_does_not_have_the_package():
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    assert [str(path) for path in files if re.search(r"install [\"']?tqpo", path.read_text("utf-8"))] == []


def test_after_make_the_command_is_found():
    for name in ("README.md", "docs/getting-started.md"):
        text = (ROOT / name).read_text("utf-8")
        for words in ("source .venv/bin/activate", "`.venv/bin/tqpo`", "`uv tool install .`"):
            assert words in text, (name, words)
