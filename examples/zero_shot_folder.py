"""A folder of images -> a table of findings, by a model that this project has trained.

    python examples/zero_shot_folder.py runs/demo/model IMAGES [--output findings.csv]

IMAGES may hold DICOM, PNG and JPEG, in folders of folders. An image that cannot be read is named
with the reason, and the others go on. Scores compare two prompts; they are no probabilities of
disease unless the model was calibrated. Research use only.
"""

import argparse
import csv
import sys
from pathlib import Path

import medclip_dcl as medclip
from medclip_dcl.core.errors import ImageError


def main() -> int:
    """Ask the model about every file; gives the number of images that were refused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of a published model")
    parser.add_argument("images", type=Path)
    parser.add_argument("--output", type=Path, help="CSV file; standard output without it")
    options = parser.parse_args()

    model = medclip.load(options.model)
    names = [finding.name for finding in model.findings]
    refused = 0
    file = options.output.open("w", newline="", encoding="utf-8") if options.output else sys.stdout
    with file:
        table = csv.writer(file)
        table.writerow(["image", *names])
        for path in sorted(path for path in options.images.rglob("*") if path.is_file()):
            try:
                scores = model.classify(path).findings
            except ImageError as error:
                refused += 1
                print(f"{path}: {error}", file=sys.stderr)
                continue
            given = [
                score.score if score.probability is None else score.probability for score in scores
            ]
            name = path.relative_to(options.images)
            table.writerow([name, *(f"{value:.3f}" for value in given)])
    return refused


if __name__ == "__main__":
    main()
