"""Executes the notebooks; as a script, stores their outputs: python tests/_execute_notebooks.py."""

import base64
import io
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NUM_COLOURS = 96
"""Of a stored picture, a quarter of the size of one with all colours."""


def execute(path, **environment):
    """Run a notebook in a kernel of its own with these variables set, and return it."""
    notebook = nbformat.read(path, as_version=4)
    # No times of execution, so that the same outputs are the same file.
    client = NotebookClient(notebook, timeout=600, record_timing=False)
    manager = client.create_kernel_manager()
    manager.kernel_spec.argv[0] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        if os.name == "posix":
            # Sockets of its own, and no open port, of which the kernel would warn.
            manager.transport, manager.ip = "ipc", f"{folder}/kernel"
        client.execute(cwd=str(FOLDER.parent), env={**os.environ, **environment})
    return notebook


def outputs_of(notebook):
    """Every output of a notebook, in order."""
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def shrink(data):
    """Store a PNG, as base64, with fewer colours."""
    image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    small = io.BytesIO()
    image.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def store(path):
    """Run a notebook and keep what it shows, and nothing of who ran it."""
    notebook = execute(path)
    for output in outputs_of(notebook):
        data = output.get("data", {})
        if "image/png" in data:
            data["image/png"] = shrink(data["image/png"])
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for each in NOTEBOOKS:
        store(each)
