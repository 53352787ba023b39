"""The check of a source: every planted fault named, nothing invented, and no text let out."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medclip_dcl.data import manifest, selection
from medclip_dcl.data.records import ImageRecord, RawStudies, Reject, Text
from medclip_dcl.data.selection import Selection
from medclip_dcl.text.sections import cut_report
from pipelines import check_data
from pipelines.__main__ import main
from pipelines.check_data import PAGE, UNNAMED, Found
from pipelines.report import preflight
from pipelines.report.preflight import read_preflight
from tests.support.dicom import dicom_bytes, ramp
from tests.support.jobs import config_for, made, rows, run
from tests.support.release import REPORT, Release, release

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5242880\n"
PAGE_SAVED = b"<!DOCTYPE html>\n<html><title>503 Service Unavailable</title></html>\n"


def check(tmp_path: Path, given: Release | None = None, **sections: Any) -> int:
    root, work = tmp_path / "source", tmp_path / "work"
    if given is not None:
        root.mkdir()
        given.write(root)
    source = {"root": str(root), "boxes": "boxes.csv"} | sections.pop("source", {})
    config_file = config_for(work, workers=1, source=source, **sections)
    return main(["check_data", "--config", str(config_file)])


def tree(tmp_path: Path) -> dict[str, Any]:
    return read_preflight(made(tmp_path / "work", preflight.ARTIFACT))


def found(tmp_path: Path) -> list[dict[str, Any]]:
    return rows(tmp_path / "work", preflight.ARTIFACT, preflight.FOUND)


def picture(number: int, **tags: Any) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 4096, (40, 50), dtype=np.uint16)
    return dicom_bytes(pixels, **tags)


def spoilt_archive() -> tuple[Release, set[tuple[str, str]]]:
    """Patients of whom each has a fault of its own, but for 2 and 3, who share one, and 17.

    Gives what the check must name: code and id.
    """
    given = release(19)
    ids, people, studies = ([row[at] for row in given.images] for at in range(3))
    said = [REPORT.replace("are clear", f"are clear in patient {number}") for number in range(19)]
    given.report = {study: text.encode() for study, text in zip(studies, said, strict=True)}
    given.image = {name: picture(number) for number, name in enumerate(ids)}
    path = f"files/p{people[0][:2]}/p{people[0]}/s{studies[0]}/{ids[0]}.dcm"
    given.boxes = [f"Edema,edema,{path},1,1,5,5,{ids[0]},50,40"]
    given.images.append(("second-image", people[1], "59999999", "PA"))
    given.report["59999999"] = REPORT.replace("No acute", "No other acute").encode()
    given.image["second-image"] = picture(99)
    given.splits = {"second-image": "test", ids[2]: "test"}
    given.image[ids[3]], given.report[studies[3]] = given.image[ids[2]], given.report[studies[2]]
    for number, view in ((4, "LATERAL"), (5, "")):
        given.images[number] = (*given.images[number][:3], view)
    given.image[ids[5]] = picture(5, ViewPosition="")
    given.images += [given.images[6], ("../../escape", people[17], studies[17], "AP")]
    given.image["../../escape"] = None
    given.image[ids[7]], given.image[ids[8]], given.image[ids[9]] = None, POINTER, PAGE_SAVED
    given.image[ids[10]] = picture(10)[:-2000]
    given.image[ids[11]] = dicom_bytes(np.full((40, 50), 77, np.uint16))
    given.image[ids[12]] = picture(12, BurnedInAnnotation="YES")
    texts = (
        None,
        POINTER,
        b" FINAL REPORT\n FINDINGS:\n \n IMPRESSION:\n",
        said[16].encode("utf-16"),
    )
    given.report |= dict(zip(studies[13:17], texts, strict=True))
    given.image[ids[18]] = picture(18, photometric="MONOCHROME1")
    codes = ["lateral", "no_view", "duplicate_id", "missing_image", "pointer_file"]
    codes += ["unknown_format", "truncated", "constant", "burned_in"]
    named = set(zip(codes, ids[4:13], strict=True))
    named |= {("boxed_training", people[0]), ("two_splits", people[1])}
    named |= {("same_pixels", ids[3]), ("pixels_across_splits", ids[3]), ("same_text", studies[3])}
    of_reports = ("no_report", "pointer_file", "empty_report", "not_utf8")
    named |= set(zip(of_reports, studies[13:17], strict=True))
    named |= {("image_without_report", name) for name in ids[13:17]}
    return given, named | {("monochrome1", ids[18]), ("bad_id", "row-000021")}


CHECK_ALONE = {"boxed_training", "two_splits", "same_pixels", "pixels_across_splits", "same_text"}
CHECK_ALONE |= {"unknown_format", "truncated", "constant", "burned_in", "monochrome1"}


def test_every_fault_is_named_and_none_is_invented_and_no_id_is_printed(tmp_path, capsys):
    given, named = spoilt_archive()
    everything: dict[str, Any] = {"source": {"max_reject_share": 1.0}}
    assert check(tmp_path, given, **everything) == 3
    assert {(row["code"], row["id"]) for row in found(tmp_path)} == named
    run("build_manifest", tmp_path / "work")
    rejects = rows(tmp_path / "work", manifest.ARTIFACT, manifest.REJECTS)
    expected = {(code, name) for code, name in named if code not in CHECK_ALONE}
    renamed = {("no_report" if c == "image_without_report" else c, name) for c, name in expected}
    assert {(row["reason"], row["id"]) for row in rejects} == renamed
    steps = {step["name"]: step["images"] for step in tree(tmp_path)["steps"]}
    assert steps == {
        "in the source": 20, "frontal": 18, "with a file": 16, "with text": 12,
        "with usable sentences": 12, "that opens": 8,
    }  # fmt: skip
    listed = rows(tmp_path / "work", manifest.ARTIFACT, manifest.IMAGES)
    splits = {(row["subject_id"], row["split"]) for row in listed}
    assert len({subject for subject, _ in splits}) == len(splits)  # nobody is in two
    assert (given.images[0][1], "test") in splits
    assert check(tmp_path, **everything) == 3
    printed = capsys.readouterr()
    assert '"state": "reused"' in printed.out
    ids = {text for row in given.images for text in row[:3]}
    for text in (printed.out, printed.err, (tmp_path / "work" / PAGE).read_text()):
        assert not [name for name in ids if name in text]


def test_a_sound_source_is_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = release(3)
    given.image = {row[0]: dicom_bytes(ramp(40 + n, 50)) for n, row in enumerate(given.images)}
    assert check(tmp_path, given) == 0
    facts = tree(tmp_path)
    assert facts["verdict"]["clean"]
    assert [(step["images"], step["patients"]) for step in facts["steps"]] == [(3, 3)] * 6
    assert facts["images"]["bits"] == {"12": 3}
    assert facts["labels"]["source"] == "table"
    assert facts["labels"]["findings"]["Atelectasis"]["present"] == 3
    assert facts["labels"]["findings"]["Cardiomegaly"]["absent"] == 3
    printed = capsys.readouterr().out
    assert "with usable sentences" in printed
    assert printed.count("clean") >= 2


def test_no_text_and_no_name_leaves_the_check(tmp_path, capsys):
    given = release(2)
    said = REPORT.replace("The lungs are clear.", "PHISENTINEL has clear lungs.")
    given.report = {row[2]: said.encode() for row in given.images}
    given.image = {row[0]: dicom_bytes(ramp(), PatientName="PHISENTINEL") for row in given.images}
    assert check(tmp_path, given) == 3  # one picture, two patients
    printed = capsys.readouterr()
    assert "PHISENT" not in printed.out + printed.err
    page = tmp_path / "work" / PAGE  # which holds reports, for its owner alone
    assert page.stat().st_mode & 0o777 == 0o600
    assert "PHISENTINEL has clear lungs" in page.read_text()
    assert check(tmp_path, report={"private": True}) == 3
    for path in (tmp_path / "work").rglob("*"):
        assert not path.is_file() or b"PHISENT" not in path.read_bytes()


def table_of(tmp_path: Path, texts: list[str]) -> dict[str, Any]:
    (tmp_path / "source").mkdir(exist_ok=True)
    lines = [{"uid": n, "text": text} for n, text in enumerate(texts)]
    table = tmp_path / "source/reports.jsonl"
    table.write_text("\n".join(map(json.dumps, lines)) + "\n")
    columns = {"subject_id": "uid", "report": "text"}
    return {"kind": "table", "table": "reports.jsonl", "columns": columns, "boxes": ""}


def test_the_page_shows_how_reports_are_read(tmp_path, capsys):
    report = "HISTORY: Old fracture.\nFINDINGS: No left effusion. Unchanged.\nIMPRESSION: Edema."
    assert check(tmp_path, source=table_of(tmp_path, [report, "FINDINGS: Clear lungs."])) == 0
    page = (tmp_path / "work" / PAGE).read_text()
    assert '<mark class="r-out" title="left out: history"> Old fracture.\n</mark>' in page
    assert '<mark class="r-absent" title="findings">No left effusion.</mark>' in page
    assert '<mark class="r-out" title="left out: short">Unchanged.</mark>' in page
    assert '<small class="r-present">+Edema</small>' in page
    text = tree(tmp_path)["text"]
    assert text["dropped"] == {"history": 12, "short": 10}
    assert text["languages"] == {"en": 2}
    printed = capsys.readouterr()
    assert "fracture" not in printed.out + printed.err
    assert "left out though" in printed.out  # a tenth of the text is a short sentence


def test_a_table_of_reports_alone_is_held_against_the_threshold_and_its_language_warned_of(
    tmp_path, capsys
):
    texts = ["Kein Pneumothorax. Herz normal groß.", "No edema.", "Mild edema.", ""]
    source = table_of(tmp_path, texts)
    assert check(tmp_path, source=source | {"max_reject_share": 0.2}) == 3
    assert check(tmp_path, source=source | {"max_reject_share": 0.3}) == 0
    printed = capsys.readouterr().out
    assert "1 of 3 reports read like another language than English (German)" in printed
    facts = tree(tmp_path)
    assert [step["studies"] for step in facts["steps"]] == [4, 3, 3]
    assert facts["labels"]["source"] == "reports"
    labels = facts["labels"]["findings"]
    assert labels["Pneumothorax"] == {"present": 0, "absent": 0, "uncertain": 0}
    assert labels["Edema"] == {"present": 1, "absent": 1, "uncertain": 0}
    assert not re.search(r"<th[^>]*>images</th>", (tmp_path / "work" / PAGE).read_text())


def test_faults_name_the_row_of_their_table(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for split in ("train", "test"):
        lines = ["who,study,file,text", f"{split},{split}0,0.png,No edema.", f",{split}1,1.png,a"]
        lines += [f"{split},{split}2,2.png,", f"{split},{split}0,3.png,No edema."]
        (tmp_path / f"source/{split}.csv").write_text("\n".join(lines))
    columns = {"subject_id": "who", "study_id": "study", "path": "file", "report": "text"}
    columns["image_id"] = "study"
    table = {"train": "train.csv", "test": "test.csv"}
    source = {"kind": "table", "table": table, "columns": columns, "boxes": ""}
    assert check(tmp_path, source=source) == 3
    named = {(row["code"], row["id"]): (row["table"], row["row"]) for row in found(tmp_path)}
    assert named["missing_image", "train0"] == ("train.csv", 0)
    assert named["no_subject", "test1"] == ("test.csv", 1)
    assert named["missing_image", "test2"] == ("test.csv", 2)
    assert named["duplicate_id", "test0"] == ("test.csv", 3)


@pytest.mark.real_data
def test_real_sources_are_checked(tmp_path, test_data, monkeypatch):
    monkeypatch.setenv("TEST_DATA", str(test_data))
    config = Path(__file__).parents[2] / "configs/covid_cxr.yaml"
    assert main(["check_data", "--config", str(config), "--set", f"work={tmp_path / 'work'}"]) == 0
    facts = tree(tmp_path)
    assert facts["steps"][0]["images"] == 127
    assert facts["images"]["opened"] == sum(facts["images"]["formats"].values()) == 127
    assert "same_pixels" not in {line["code"] for line in facts["lines"]}


def test_the_same_picture_has_one_key_however_it_is_stored(tmp_path: Path) -> None:
    given, pixels = release(5), ramp(40, 50)
    files = (
        dicom_bytes(pixels, PixelSpacing=["0", "0"]),
        dicom_bytes(pixels.max() - pixels, PhotometricInterpretation="MONOCHROME1"),
        dicom_bytes(np.ascontiguousarray(pixels[:, ::-1])),
        dicom_bytes(np.full_like(pixels, 7)),
        dicom_bytes(pixels)[:-100],
    )
    given.image = {row[0]: data for row, data in zip(given.images, files, strict=True)}
    assert check(tmp_path, given) == 3
    read = rows(tmp_path / "work", preflight.ARTIFACT, preflight.IMAGES)
    plain, inverse, other, flat, cut = read
    assert plain["pixels_key"] == inverse["pixels_key"] != ""
    assert other["pixels_key"] not in {"", plain["pixels_key"]}
    assert [row["inverted"] for row in read] == [False, True, False, False, False]
    assert (plain["ignored"], other["ignored"]) == ("PixelSpacing", "")
    assert (plain["height_px"], plain["width_px"]) == (40, 50)
    assert (flat["code"], flat["pixels_key"]) == ("constant", "")
    assert (cut["code"], cut["source"], cut["bits_stored"]) == ("truncated", "", None)


def test_repeats_are_grouped_and_all_but_the_first_are_named(tmp_path: Path) -> None:
    owners = {"a": "1", "b": "1", "c": "2", "d": "3"}  # the last is tested, the others train
    images = [(name, owner, f"{owner}{name}", "AP") for name, owner in owners.items()]
    given = Release(images, splits={"d": "test"})
    given.image = {name: picture(number=name == "c") for name in owners}
    assert check(tmp_path, given) == 3
    repeats = [row for row in found(tmp_path) if "pixels" in row["code"]]
    assert {(row["code"], row["id"], row["other"]) for row in repeats} == {
        ("same_pixels", "b", "a"),
        ("same_pixels", "d", "a"),
        ("pixels_across_splits", "b", "d"),
        ("pixels_across_splits", "d", "a"),
    }


# ---- By hand


def test_every_character_of_a_report_is_marked_with_what_is_done_with_it() -> None:
    report = "XR\nHISTORY: Old left effusion.\nFINDINGS: Clear lungs. 2. Unchanged.\nABC:\nx"
    pieces = check_data.mark_report(cut_report(report), ["findings", "impression"])
    assert "".join(piece.text for piece in pieces) == report
    assert [(piece.text, piece.reason) for piece in pieces if piece.reason and piece.text] == [
        ("XR\n", UNNAMED),
        (" Old left effusion.\n", "history"),
        ("2. Unchanged.", "short"),
    ]
    row = check_data.describe_report(cut_report(report), ["findings"])
    assert row["dropped"] == {UNNAMED: 2, "history": 16, "short": 12}
    assert (row["characters"], row["language"]) == (len("".join(report.split())), "en")


def chosen(images: list[ImageRecord], texts: dict[str, str], rejects: list[Reject]) -> Selection:
    blank = dict.fromkeys(texts, Text("", "", ""))
    return Selection(images, blank, texts, rejects, 5, len(rejects), Counter())


def test_an_image_that_goes_with_its_report_is_not_blamed_itself() -> None:
    studies = {"a": "s1", "row-1": "row-1", "row-2": "row-2"}
    images = [ImageRecord(name, study, "p", "PA", name) for name, study in studies.items()]
    blamed = [("s1", "not_utf8"), ("a", "no_report"), ("row-1", "empty_report")]
    blamed += [("row-1", "no_report"), ("row-2", "no_report")]
    raw = RawStudies(Path(), images, [], has_images=True)
    named = check_data.name_rejects(raw, chosen([], {}, [Reject(*item) for item in blamed]))
    assert [(item.code, item.id) for item in named] == [
        ("not_utf8", "s1"),
        ("image_without_report", "a"),
        ("empty_report", "row-1"),
        ("image_without_report", "row-1"),
        ("no_report", "row-2"),
    ]


def test_every_code_has_a_kind_and_a_meaning() -> None:
    codes = [*selection.REJECT_REASONS, *preflight.CODES]
    lines = check_data.make_lines([Found(code, "x") for code in codes], {}, 1)
    assert len(lines) == len(set(codes)) > 40
    assert all(line["meaning"] for line in lines)


@pytest.mark.parametrize(
    ("found", "most", "clean"),
    [
        ([], 0.37, True),  # 1 of 5 rows, and 1 of 5 images of the rest: 0.36
        ([], 0.35, False),
        ([Found("same_pixels", "b", "c")], 0.37, True),
        ([Found("same_pixels", "b", "c"), Found("same_pixels", "d", "e")], 0.37, False),
        ([Found("two_splits", "p")], 1, False),
    ],
)
def test_each_threshold_decides(found: list[Found], most: float, clean: bool) -> None:
    found = [Found("truncated", "a"), *found]
    left = chosen([], {"s": "p"}, [Reject("x", "empty_report")])
    verdict = check_data.judge(left, {"opened": 5, "refused": 1}, found, most)
    assert verdict["unusable_share"] == pytest.approx(0.36)
    assert verdict["clean"] is clean
