"""The notebook in examples/, run as a reader runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "pipeline"


@pytest.mark.spark
def test_notebook_runs_from_its_first_to_its_last_cell() -> None:
    """It runs in a kernel of its own, and each cell that promises a picture has one."""
    import nbclient
    import nbformat

    notebook = nbformat.read(FOLDER / "tour.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    told = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "the longest time without a record" in told
