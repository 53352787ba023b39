"""The whole benchmark on made-up images in the form of the real ones."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.method.real_images.__main__ import bars_of, main
from testing.dicom import raster_bytes
from testing.published import publish

LUNGS = {"Right Lung": (4, 10, 24, 60), "Left Lung": (46, 12, 26, 58)}


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_data(folder: Path) -> Path:
    """Forty images, the ill brighter on top; three with lungs, darker than what is around."""
    rng = np.random.default_rng(0)
    labelled: list[dict[str, object]] = []
    chests: list[dict[str, object]] = []
    boxes: list[dict[str, object]] = []
    (folder / "peds_cxr").mkdir(parents=True)
    (folder / "covid_cxr").mkdir()
    for number in range(40):
        pixels = rng.integers(60, 140, (48, 64)).astype(np.uint8)
        pixels[:20] += np.uint8(60 * (number % 2))
        (folder / f"peds_cxr/{number}.png").write_bytes(raster_bytes(pixels, "png"))
        label = ("normal", "pneumonia")[number % 2]
        labelled.append({"file": f"{number}.png", "label": label, "patient_id": f"c{number}"})
    for number in range(3):
        name = f"{number}.png"
        pixels = rng.integers(150, 250, (88, 80)).astype(np.uint8)
        for side, (x, y, width, height) in LUNGS.items():
            pixels[y : y + height, x : x + width] -= 120
            boxes.append({"file": name, "label": side, "x": x, "y": y, "w": width, "h": height})
        (folder / "covid_cxr" / name).write_bytes(raster_bytes(pixels, "png"))
        chest = {"file": name, "view": "PA", "report_text": "No pleural effusion."}
        chests.append({**chest, "group_id": f"g{number}", "width": 80, "height": 88})
    write_rows(folder / "peds_cxr/manifest.csv", labelled)
    write_rows(folder / "covid_cxr/manifest.csv", chests)
    write_rows(folder / "covid_cxr/lung_boxes.csv", boxes)
    return folder


def test_every_part_is_measured_and_the_controls_are_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEST_DATA", str(write_data(tmp_path / "data")))
    publish(tmp_path / "model")
    assert main(["--quick", "--model", str(tmp_path / "model")]) == 0
    output = capsys.readouterr().out
    line = json.loads(output.splitlines()[-1])
    figures = line["figures"]
    assert line["benchmark"] == "real_images"
    assert figures["auc_pixels"] > 0.95
    assert figures["auc_shape"] == 0.5  # all files are of one size
    assert figures["auc_pixels_low"] <= figures["auc_pixels"] <= figures["auc_pixels_high"]
    assert 0 < figures["auc_shuffled_probe"] < 1
    assert figures["lung_images"] == 3
    assert figures["paper_whole_pointed"] == figures["paper_whole_left_is_right"] == 1
    for geometry in ("whole", "biovil"):
        areas = sum(width * height for _, _, width, height in LUNGS.values()) / (2 * 80 * 88)
        assert figures[f"named_{geometry}_chance"] == pytest.approx(areas, abs=0.01)
        assert f"exchanged_{geometry}_pointing" in figures
    assert set(line["bars"]) == set(bars_of(figures))


def test_missing_data_or_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TEST_DATA", raising=False)
    assert main([]) == 1
    assert "TEST_DATA" in capsys.readouterr().err
    monkeypatch.setenv("TEST_DATA", str(tmp_path))
    assert main(["--model", str(tmp_path / "none")]) == 1
    assert "make demo" in capsys.readouterr().err
    publish(tmp_path / "model")
    assert main(["--model", str(tmp_path / "model")]) == 1
    assert "manifest.csv" in capsys.readouterr().err
