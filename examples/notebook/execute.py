"""Execute the notebook beside this file and keep what its cells show: `make notebook`.

It runs in a temporary folder. What would differ from machine to machine is left out: times, versions, names of kernels.
"""

import shutil
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
NOTEBOOK = HERE / "first_run.ipynb"

notebook = nbformat.read(NOTEBOOK, as_version=4)
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(HERE / "packages.csv", folder)
    client = NotebookClient(notebook, record_timing=False, resources={"metadata": {"path": folder}})
    client.execute()
notebook.metadata.language_info = {"name": "python"}
nbformat.write(notebook, NOTEBOOK)
