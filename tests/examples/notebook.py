"""Runs the code of a notebook as plain Python. Jupyter would bring 29 packages for this.

python -m tests.examples.notebook FILE FOLDER       # FOLDER holds the runs/ that FILE reads
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl


def code_of(notebook: Path) -> list[str]:
    """Return the source of every code cell."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(notebook: Path) -> dict[str, Any]:
    """Run all cells in the current folder, and give what they have named."""
    names: dict[str, Any] = {}
    with mpl.rc_context({"backend": "agg"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        for code in code_of(notebook):
            exec(code, names)
    return names


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    os.chdir(sys.argv[2])
    run(file)
