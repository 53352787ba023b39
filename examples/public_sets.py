"""Write `studies.jsonl` of a public set whose tables no config reads as they are.

    python examples/public_sets.py padchest_gr /data/padchest_gr
    python examples/public_sets.py tbx11k /data/tbx11k

The folder is the set as it was unpacked; docs/datasets.md names its files.
"""

import argparse
import json
from pathlib import Path

import pandas as pd

TUBERCULOSIS = {
    "ActiveTuberculosis": "Active tuberculosis",
    "ObsoletePulmonaryTuberculosis": "Latent tuberculosis",
}
FOLDER_LABELS = {"health": ["Healthy"], "sick": [], "tb": ["Tuberculosis"]}


def padchest_gr(folder: Path) -> None:
    """Join the reports with patients and splits, which stand in another table."""
    ids = pd.read_csv(folder / "master_table.csv", dtype=str).drop_duplicates("StudyID")
    studies = pd.read_json(folder / "grounded_reports_20240819.json", dtype=False)
    studies = studies.merge(ids[["StudyID", "PatientID", "split"]], on="StudyID")
    findings = list(studies["findings"])
    studies["report"] = [" ".join(one["sentence_en"] for one in study) for study in findings]
    studies["findings"] = [
        [{"sentence_en": one["sentence_en"], "boxes": one.get("boxes") or []} for one in study]
        for study in findings
    ]
    studies.to_json(folder / "studies.jsonl", orient="records", lines=True)


def tbx11k(folder: Path) -> None:
    """Turn boxes in COCO's form, and folders that name what an image shows, into rows."""
    tree = json.loads((folder / "annotations/json/TBX11K_val.json").read_text())
    names = {one["id"]: TUBERCULOSIS.get(one["name"], "Tuberculosis") for one in tree["categories"]}
    boxes: dict[int, dict[str, list[list[float]]]] = {image["id"]: {} for image in tree["images"]}
    for one in tree["annotations"]:
        boxes[one["image_id"]].setdefault(names[one["category_id"]], []).append(one["bbox"])
    with (folder / "studies.jsonl").open("w", encoding="utf-8") as lines:
        for image in tree["images"]:
            by_finding = boxes[image["id"]]
            shown = FOLDER_LABELS[image["file_name"].partition("/")[0]]
            row = {"image": image["file_name"], "width": image["width"], "height": image["height"]}
            row["labels"] = [*shown, *by_finding]
            row["areas"] = [{"finding": name, "boxes": own} for name, own in by_finding.items()]
            lines.write(json.dumps(row) + "\n")


def main() -> None:
    """Write the table of one set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    sets = {"padchest_gr": padchest_gr, "tbx11k": tbx11k}
    parser.add_argument("name", choices=sets)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    sets[args.name](args.folder)


if __name__ == "__main__":
    main()
