"""What an import loads, and the way to the first loss.

`python -m tests.house.loaded FOLDER NAME...` writes a JSON file for each name. Imports of libraries
take seconds: one process has them, and finds every answer in a fork.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from tests.house.tree import ROOT, SHIPPED

LIGHT = ("medclip_dcl.client", "pipelines.config")
"""Modules that are asked before any library is there: they are to load no torch."""
FIRST_LOSS = "first loss"


def loaded(module: str) -> dict[str, object]:
    """Modules of the project that an import loads, with their files; and whether torch is."""
    importlib.import_module(module)
    files = {
        name: found.__file__
        for name, found in list(sys.modules.items())
        if name.split(".")[0] in SHIPPED and getattr(found, "__file__", None)
    }
    return {"files": files, "torch": "torch" in sys.modules}


def loss_stack(work: Path) -> list[str]:
    """Files of the project on the call stack where a tiny training computes its first loss."""
    from medclip_dcl.training import objective
    from pipelines.train import main
    from tests.support.corpus import write_config, write_corpus

    files: list[Path] = []

    def traced(*_arguments: object, **_options: object) -> None:
        files.extend(Path(frame.filename).resolve() for frame in traceback.extract_stack())
        raise SystemExit

    objective.debiased_terms = traced  # type: ignore[assignment]
    config = write_config(work / "config.yaml", write_corpus(work), train={"steps": 1})
    main(["--config", str(config)])
    shipped = [file for file in files if any(ROOT / top in file.parents for top in SHIPPED)]
    own = [str(file.relative_to(ROOT)) for file in dict.fromkeys(shipped)]
    return [*own, "medclip_dcl/losses/debiased.py"]


def main(folder: Path, names: list[str]) -> None:
    """Answer each name in a fork."""
    for name in sorted(names, key=LIGHT.__contains__, reverse=True):
        if name not in LIGHT:
            for library in ("torch", "transformers", "accelerate"):
                importlib.import_module(library)
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0, name
            continue
        answer = loss_stack(folder / "work") if name == FIRST_LOSS else loaded(name)
        (folder / name).write_text(json.dumps(answer), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
