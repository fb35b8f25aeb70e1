"""The notebook of examples/, executed: results in a few lines, figures inline, a progress bar under its cell."""

import nbformat
import pytest
from nbclient import NotebookClient

from helpers import ROOT, SLOW


@pytest.mark.slow(20)
@pytest.mark.filterwarnings("default")  # of Jupyter's own code
def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells), "the notebook is kept without its outputs"
    NotebookClient(notebook, timeout=SLOW, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {output for cell in cells for output in map(_said, cell.outputs)}
    figures = [cell for cell in cells if cell.source.endswith(".plot()")]
    for cell in figures:
        assert [list(output.data) for output in cell.outputs] == [["application/vnd.plotly.v1+json"]]
    assert len(figures) == 2
    assert any("fit round 30" in text and "100%" in text for text in outputs)
    results = [text for text in outputs if text.startswith(("Fitted: 6 devices", "Comparison of 3", "Records of runs"))]
    assert len(results) == 3
    assert all(len(text.splitlines()) <= 5 for text in results)
    assert (tmp_path / "runs" / "notebook" / "report.html").exists()
    assert (tmp_path / "runs" / "digits" / "report.html").exists()


def _said(output):
    return output.data.get("text/plain", "") if "data" in output else output.get("text", "")
