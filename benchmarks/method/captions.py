"""Class names as captions: nearly every batch of eight repeats one. Which objective minds that?

    TEST_DATA=FOLDER python -m benchmarks.method.captions [--quick] | python -m benchmarks.record

Trains on 599 radiographs of ChestX-ray14 at 64 pixels (`nih64` of that folder): labels alone, of
which `source.template` makes sentences. Rows differ in the objective. Steps and seeds
were halved for time after runs that ended early, before any figure was seen; `--quick`: one seed.
A demonstration: pictures and test set are small.
"""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from benchmarks.record import finish, is_quick
from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.evaluation import results
from medclip_dcl.text import sentences
from pipelines.__main__ import main as medclip
from pipelines.config import laid_over
from pipelines.python import OBJECTIVES

FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema"),
    *("Fibrosis", "Infiltration", "Mass", "Nodule", "Pleural_Thickening", "Pneumothorax"),
)
TEMPLATE = "{finding} in the chest X-ray."
BATCH, STEPS, SEEDS = 8, 600, (0, 1)
ROWS: dict[str, dict[str, Any]] = {
    "infonce": {"objective": OBJECTIVES["infonce"], "eta": {"source": "constant"}},
    "debiased": {"objective": OBJECTIVES["debiased"], "eta": {"source": "table"}},
    "relations": {"objective": OBJECTIVES["relations"], "eta": {"source": "constant"}},
}
DATA = ("build_manifest", "prepare_images", "split_sentences", "read_claims", "fit_language_model")


def _config(root: Path, prompts: Path) -> dict[str, Any]:
    columns = {"path": "image", "subject_id": "patient_id"}
    labels = {name: name for name in FINDINGS}
    return {
        "source": {
            "kind": "table",
            "root": str(root / "images"),
            "table": str(root / "labels.csv"),
            "columns": {**columns, "labels": labels},
            "findings": list(FINDINGS),
            "template": TEMPLATE,
            "validate_share": 0.1,
            "test_share": 0.4,
            "max_reject_share": 0.1,
        },
        "images": {"size_px": 64},
        "language_model": {"steps": 50, "threads": 1},
        "model": {"image": {"depths": [2, 2, 2], "widths": [16, 32, 64], "input_px": 64}},
        "train": {
            "global_batch": BATCH,
            "steps": STEPS,
            "warmup_steps": 50,
            "learning_rate": 1e-3,
            "text_learning_rate": 3e-4,
            "save_every_steps": STEPS,
        },
        "evaluate": {"prompts": str(prompts), "bootstrap": 100},
    }


def _captions(work: Path) -> list[list[str]]:
    """Captions of each training study."""
    table = read_table(
        open_artifact(sentences.ARTIFACT.at(work), sentences.ARTIFACT).path, sentences.SENTENCES
    ).to_pylist()
    of_study: dict[str, list[str]] = {}
    for row in table:
        if row["split"] == "train":
            of_study.setdefault(row["study_id"], []).append(row["text"])
    return list(of_study.values())


def _repeats(studies: Sequence[Sequence[str]]) -> float:
    """Share of batches, an image and a caption of each of eight studies, that repeat a caption."""
    draws = np.random.default_rng(0)
    batches = [draws.choice(len(studies), BATCH, replace=False) for _ in range(4000)]
    return fmean(len({draws.choice(studies[i]) for i in batch}) < BATCH for batch in batches)


def _write_shares(file: Path, studies: Sequence[Sequence[str]]) -> Path:
    # eta as what it stands for: the share of studies that have the caption
    counts = Counter(text for said in studies for text in set(said))
    every = [TEMPLATE.replace("{finding}", name) for name in (*FINDINGS, "No finding")]
    rows = [f"{text},{counts[text] / len(studies)}\n" for text in every]
    file.write_text("text,eta\n" + "".join(rows))
    return file


def _run(stages: Sequence[str], work: Path, tree: dict[str, Any]) -> None:
    file = work / "config.yaml"
    file.write_text(yaml.safe_dump({**tree, "work": str(work), "jobs": list(stages)}))
    with redirect_stdout(sys.stderr):  # the result is the last line of stdout
        code = medclip(["run", str(file)])
    if code:
        sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Print every row's AUC; 1 without the data."""
    seeds = SEEDS[:1] if is_quick(argv) else SEEDS
    root = Path(os.environ.get("TEST_DATA", "")) / "nih64"
    if not (root / "labels.csv").is_file():
        print("TEST_DATA names no folder with nih64", file=sys.stderr)
        return 1
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "data"
        work.mkdir()
        asked = [
            {"name": name, "label": name, "positive": [TEMPLATE.replace("{finding}", name)],
             "negative": [TEMPLATE.replace("{finding}", "No finding")]}
            for name in FINDINGS
        ]  # fmt: skip
        prompts = Path(folder) / "prompts.yaml"
        prompts.write_text(yaml.safe_dump({"format_version": 1, "findings": asked}))
        tree = _config(root, prompts)
        _run(DATA, work, tree)
        captions = _captions(work)
        figures["batches_with_a_repeated_caption"] = round(_repeats(captions), 3)
        tree["eta"] = {"table": str(_write_shares(Path(folder) / "eta.csv", captions))}
        for row, changes in ROWS.items():
            for seed in seeds:
                own = Path(folder) / f"{row}-{seed}"
                own.mkdir()
                for made in work.iterdir():
                    (own / made.name).symlink_to(made) if made.is_dir() else None
                _run(
                    ("build_eta_cache", "train", "evaluate"),
                    own,
                    laid_over(tree, {**changes, "seed": seed}),
                )
                read = open_artifact(results.ARTIFACT.at(own), results.ARTIFACT)
                auc = results.read_figures(read)["questions"]["zero_shot"]["figures"]["mean_auc"]
                figures[f"{row}_auc_seed_{seed}"] = round(auc["value"], 4)
                print(row, seed, auc, file=sys.stderr, flush=True)
            figures[f"{row}_auc"] = round(
                fmean(figures[f"{row}_auc_seed_{seed}"] for seed in seeds), 4
            )
    return finish("captions", figures, {})


if __name__ == "__main__":
    sys.exit(main())
