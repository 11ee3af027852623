"""The notebook of the examples, run from its first cell to its last."""

import pathlib

import jobs
import nbclient
import nbformat
import pytest

NOTEBOOK = pathlib.Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


@pytest.mark.slow
def test_the_quickstart_runs_and_shows_its_cards(tmp_path, monkeypatch):
    for name, value in jobs.environment().items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert len(shown) == 4
    assert all("<div class=tqpo>" in data["text/html"] for data in shown)
    assert sum("<svg" in data["text/html"] for data in shown) >= 2  # curves, where a run has them
    assert all(len(data["text/plain"]) < 1000 for data in shown)
