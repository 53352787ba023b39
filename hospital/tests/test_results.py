"""Answers as DICOM objects: their trees, their bytes, and whose they are."""

import datetime as dt
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pydicom
import pytest

from hospital.tests.support.answers import (
    ANSWERED_AT,
    CLEAN,
    DIRTY_HEADERS,
    answer_of,
    as_expected,
    radiograph,
    read,
    results_of,
)
from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.images import Decoder
from medclip_dcl.schemas import HeadAnswer
from medclip_hospital.instance import SCHEME, ResultsConfig
from medclip_hospital.results import encode_results
from tests.support.dicom import ramp

REPORT_ALONE = ResultsConfig(objects=("sr",))
WITHOUT_REPORT = ResultsConfig(objects=("pr", "sc"))


@pytest.fixture(scope="module")
def objects(decoder: Decoder) -> dict[str, pydicom.Dataset]:
    return {item.kind: read(item) for item in results_of(radiograph(), decoder)}


def tree(item: pydicom.Dataset) -> list[Any]:
    """A content item as [relationship, type, name, value, children ...]."""
    name = item.ConceptNameCodeSequence[0].CodeMeaning if "ConceptNameCodeSequence" in item else ""
    kind = item.ValueType
    value: Any = None
    if kind == "CODE":
        value = item.ConceptCodeSequence[0].CodeMeaning
    elif kind == "TEXT":
        value = item.TextValue
    elif kind == "NUM":
        measured = item.MeasuredValueSequence[0]
        unit = measured.MeasurementUnitsCodeSequence[0].CodeValue
        value = (float(measured.NumericValue), unit)
    elif kind == "SCOORD":
        value = [float(number) for number in item.GraphicData]
    return [kind, name, value, *map(tree, item.get("ContentSequence", ()))]


def named(item: list[Any], name: str) -> list[list[Any]]:
    found = [item] if item[1] == name else []
    return found + [deeper for child in item[3:] for deeper in named(child, name)]


ALGORITHM = [
    ["TEXT", "Algorithm Name", "medclip-dcl"],
    ["TEXT", "Algorithm Version", "ab" * 8],
    ["TEXT", "Algorithm Manufacturer", "medclip-dcl"],
    ["TEXT", "Algorithm Parameters", f"model sha256:{'ab' * 32}"],
    ["TEXT", "Algorithm Parameters", "engine:openvino"],
    ["TEXT", "Algorithm Parameters", "precision:bfloat16"],
    ["TEXT", "Algorithm Parameters", "RESEARCH USE ONLY, not a medical device"],
    ["CODE", "Algorithm Family", "Artificial Intelligence"],
]


def group(label: str, finding: str, numbers: list[Any], corners: list[float]) -> list[Any]:
    return [
        *["CONTAINER", "Measurement Group", None, ["TEXT", "Tracking Identifier", label]],
        *([["CODE", "Finding", finding]] if finding else []),
        *ALGORITHM,
        *numbers,
        ["CODE", "Geometric purpose of region", "Bounded by"],
        ["SCOORD", "Image Region", corners, ["IMAGE", "Source", None]],
    ]


def stable(item: list[Any]) -> list[Any]:
    """A tree without UIDs and the digest of settings, which no one can work out by hand."""
    kept = [
        stable(child)
        for child in item[3:]
        if child[0] != "UIDREF" and not str(child[2]).startswith("settings:")
    ]
    return [*item[:3], *kept]


def test_the_report_is_the_tree_that_ohif_shows(objects: dict[str, pydicom.Dataset]) -> None:
    report = objects["sr"]
    assert report.SOPClassUID == "1.2.840.10008.5.1.4.1.1.88.34"
    assert report.ContentTemplateSequence[0].TemplateIdentifier == "1500"
    found = stable(tree(report))
    (measurements,) = named(found, "Imaging Measurements")
    effusion = ["NUM", "Effusion: probability", (83.0, "%")]
    pneumonia = ["NUM", "Pneumonia: score, no probability", (0.61, "{score}")]
    others = [
        ["NUM", "Edema: probability", (8.0, "%")],
        ["NUM", "Cardiomegaly: score, no probability", (0.61, "{score}")],
    ]
    # 96 high, 64 wide; a box from (16, 48), 64 wide and 24 high, cut at the right edge
    corners = [16, 48, 64, 48, 64, 72, 16, 72, 16, 48]
    outline = [0, 0, 64, 0, 64, 96, 0, 96, 0, 0]
    assert measurements[3:] == [
        group("Effusion", "Pleural effusion", [effusion], corners),
        group("Pneumonia", "Pneumonia", [pneumonia], corners),
        group("Image", "", [effusion, pneumonia, *others], outline),
    ]
    (evaluations,) = named(found, "Qualitative Evaluations")
    without = "no probability: no calibration was fitted"
    assert evaluations[3:] == [
        ["CODE", "Pleural effusion", "Present"],
        ["TEXT", "Comment", "Effusion: present, score 0.610, probability 83.0%"],
        ["CODE", "Pneumonia", "Present"],
        ["TEXT", "Comment", f"Pneumonia: present, score 0.610, {without}"],
        ["CODE", "Edema", "Absent"],
        ["TEXT", "Comment", "Edema: absent, score 0.610, probability 8.0%"],
        ["CODE", "Cardiomegaly", "Absent"],
        ["TEXT", "Comment", f"Cardiomegaly: absent, score 0.610, {without}"],
    ]
    assert found[-2:] == [measurements, evaluations]


@pytest.mark.parametrize("present", [(), ("edema", "effusion")])
def test_every_measurement_group_has_coordinates(present, decoder):
    """A group without them is valid, and makes OHIF show a black pane."""
    answer = answer_of(96, 64, present)
    (made,) = results_of(radiograph(), decoder, answer, settings=REPORT_ALONE)
    groups = named(tree(read(made)), "Measurement Group")
    with_boxes = [name for name in present if name != "edema"]  # whose box is null
    assert len(groups) == len(with_boxes) + 1
    assert all(any(child[0] == "SCOORD" for child in item[3:]) for item in groups)


def test_a_finding_has_its_own_code_or_a_private_one(objects: dict[str, pydicom.Dataset]) -> None:
    codes = {}
    for item in objects["sr"].iterall():
        if item.keyword == "CodingSchemeDesignator":
            codes[item.value] = codes.get(item.value, 0) + 1
    assert codes["SCT"] > 4
    assert codes[SCHEME] > 4
    declared = objects["sr"].CodingSchemeIdentificationSequence
    assert [item.CodingSchemeDesignator for item in declared] == [SCHEME]


def test_the_presentation_state_has_the_boxes(objects: dict[str, pydicom.Dataset]) -> None:
    state = objects["pr"]
    (annotation,) = state.GraphicAnnotationSequence
    assert [list(shape.GraphicData) for shape in annotation.GraphicObjectSequence] == 2 * [
        [16, 48, 64, 48, 64, 72, 16, 72, 16, 48]
    ]
    texts = [text.UnformattedTextValue for text in annotation.TextObjectSequence]
    assert texts == ["Effusion 83% (research)", "Pneumonia score 0.61 (research)"]
    (area,) = state.DisplayedAreaSelectionSequence
    assert list(area.DisplayedAreaTopLeftHandCorner) == [1, 1]
    assert list(area.DisplayedAreaBottomRightHandCorner) == [64, 96]


def test_the_capture_is_a_picture_with_the_figures_below(objects):
    capture = objects["sc"]
    pixels = capture.pixel_array
    assert pixels.shape == (96 + 6 * 20 + 16, 420, 3)
    assert pixels[96:].max() > 200  # figures
    assert tuple(pixels[60, 16]) == (240, 160, 75)  # the box's left side
    (source,) = capture.SourceImageSequence
    assert source.ReferencedSOPInstanceUID == CLEAN["SOPInstanceUID"]
    assert (capture.BurnedInAnnotation, capture.ImageType[0]) == ("NO", "DERIVED")


BEYOND = answer_of(96, 64, flags=["out_of_range"])
ANSWERED_ALL_THE_SAME = ResultsConfig(out_of_range="answer")
UNLIKE = "the image is unlike those that the model was trained on"


def test_an_image_out_of_range_is_not_analysed_and_the_objects_say_so(decoder: Decoder) -> None:
    report, capture = map(read, results_of(radiograph(), decoder, BEYOND))
    assert (report.Modality, capture.Modality) == ("SR", "OT")
    found = stable(tree(report))
    (measurements,) = named(found, "Imaging Measurements")
    outline = [0, 0, 64, 0, 64, 96, 0, 96, 0, 0]
    assert measurements[3:] == [group("Image", "", [], outline)]
    (evaluations,) = named(found, "Qualitative Evaluations")
    assert evaluations[3:] == [
        ["CODE", "Summary of Analyses", "Not Attempted"],
        ["TEXT", "Comment", f"NOT ANALYSED: {UNLIKE}"],
    ]
    assert "Effusion" not in str(found)
    assert capture.pixel_array.shape == (56 + 96 + 2 * 20 + 16, 420, 3)  # a banner, and no findings
    assert capture.pixel_array[2, 2].tolist() == [150, 20, 20]
    descriptions = {item.SeriesDescription for item in (report, capture)}
    assert descriptions == {
        "NOT ANALYSED: medclip-dcl findings (research)",
        "NOT ANALYSED: medclip-dcl overlay (research)",
    }


def test_findings_of_an_image_out_of_range_are_never_without_the_warning(decoder: Decoder) -> None:
    made = results_of(radiograph(), decoder, BEYOND, settings=ANSWERED_ALL_THE_SAME)
    objects = {item.kind: read(item) for item in made}
    (evaluations,) = named(stable(tree(objects["sr"])), "Qualitative Evaluations")
    assert evaluations[3] == ["TEXT", "Comment", f"OUT OF RANGE: {UNLIKE}"]
    assert len(evaluations[3:]) == 1 + 2 * 4
    (annotation,) = objects["pr"].GraphicAnnotationSequence
    texts = [text.UnformattedTextValue for text in annotation.TextObjectSequence]
    assert all(text.endswith("(research, OUT OF RANGE)") for text in texts)
    assert objects["sc"].pixel_array[2, 2].tolist() == [150, 20, 20]
    assert tuple(objects["sc"].pixel_array[56 + 60, 16]) == (240, 160, 75)  # boxes are moved along
    assert all(item.SeriesDescription.startswith("OUT OF RANGE: ") for item in objects.values())
    refused = results_of(radiograph(), decoder, BEYOND)
    assert not {item.sop_instance_uid for item in made} & {
        item.sop_instance_uid for item in refused
    }


def test_heads_stand_in_report_and_capture_where_they_are_asked_for(decoder: Decoder) -> None:
    shared = {"kind": "linear", "threshold": 0.41}
    heads = [
        HeadAnswer(name="tuberculosis", score=0.72, decision=True, probability=0.18,
                   probability_note="", **shared),
        HeadAnswer(name="tube", score=0.3, decision=None, probability=None,
                   probability_note="upside down", **shared),
    ]  # fmt: skip
    answer = answer_of(96, 64).model_copy(update={"heads": heads})
    plain = results_of(radiograph(), decoder)
    assert results_of(radiograph(), decoder, answer) == plain  # only where it is asked for
    asked = ResultsConfig(heads=True)
    made = results_of(radiograph(), decoder, answer, settings=asked)
    objects = {item.kind: read(item) for item in made}
    (evaluations,) = named(stable(tree(objects["sr"])), "Qualitative Evaluations")
    assert evaluations[-3:] == [
        ["CODE", "Tuberculosis, head", "Present"],
        ["TEXT", "Comment", "Tuberculosis, head: present, score 0.720, probability 18.0%"],
        ["TEXT", "Comment", "Tube, head: not decided, score 0.300, no probability: upside down"],
    ]
    assert objects["sc"].Rows == 96 + (6 + 2) * 20 + 16  # a line for each head
    assert not {item.sop_instance_uid for item in made} & {item.sop_instance_uid for item in plain}
    beyond = BEYOND.model_copy(update={"heads": heads})
    refused = results_of(radiograph(), decoder, beyond, settings=asked)
    assert "Tuberculosis" not in str([tree(read(item)) for item in refused if item.kind == "sr"])


def test_the_same_answer_is_the_same_bytes_later(decoder, monkeypatch):
    first = results_of(radiograph(), decoder)
    day = 24 * 3600
    real = time.time

    class Tomorrow(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
            return dt.datetime.fromtimestamp(real() + day, tz)

    monkeypatch.setattr(time, "time", lambda: real() + day)
    monkeypatch.setattr("highdicom.base.datetime.datetime", Tomorrow)
    assert results_of(radiograph(), decoder) == first


def test_what_is_corrected_becomes_a_new_object(decoder: Decoder) -> None:
    """Archives keep the first of two objects under one UID, and answer success."""

    def uids(data: bytes, model: str = "ab" * 32, later: int = 0) -> tuple[str, ...]:
        answer = answer_of(96, 64).model_copy(update={"model": model})
        at = ANSWERED_AT + dt.timedelta(seconds=later)
        made = results_of(data, decoder, answer, at, WITHOUT_REPORT)
        return tuple(item.sop_instance_uid for item in made)

    first = uids(radiograph())
    assert uids(radiograph(), later=60) == first
    others = [
        uids(radiograph(PatientName="Corrected^Max")),
        uids(radiograph(ramp(96, 64)[::-1].copy())),
        uids(radiograph(), model="cd" * 32),
    ]
    assert len({uid for item in (first, *others) for uid in item}) == 8


@pytest.mark.parametrize("name", DIRTY_HEADERS)
def test_identity_verbatim_everything_else_valid_or_absent(name: str, decoder: Decoder) -> None:
    assert as_expected(DIRTY_HEADERS[name], decoder, WITHOUT_REPORT)


def test_objects_name_the_patient_and_nobody_else(test_data: Path, decoder: Decoder) -> None:
    data = (test_data / "dicom/files/phi_tags.dcm").read_bytes()
    for item in results_of(data, decoder):
        made = read(item)
        found = {
            element.keyword
            for element in made.iterall()
            if any(word in str(element.value) for word in ("PHISENT", "PHIHID"))
        }
        assert found == {*["PatientID", "PatientName", "AccessionNumber", "ReferringPhysicianName"]}
        assert not any(element.tag.is_private for element in made.iterall())


def test_an_answer_of_another_image_is_refused(decoder: Decoder) -> None:
    data = radiograph()
    with pytest.raises(ImageError) as refused:
        encode_results(
            decoder.separate(data).header, answer_of(64, 96), decoder.open(data), ANSWERED_AT
        )
    assert refused.value.code == "size_mismatch"


FACES: dict[str, dict[str, Any]] = {
    "inverted": {"photometric": "MONOCHROME1", "WindowCenter": "2000", "WindowWidth": "800"},
    "spaced": {
        "ImagerPixelSpacing": ["0.14", "0.14"],
        "PixelSpacing": ["0", "0"],
        "RescaleSlope": "2",
        "RescaleIntercept": "-5",
        "BodyPartExamined": "CHEST",
    },
    "japanese": {"SpecificCharacterSet": ["", "ISO 2022 IR 87"], "PatientName": "A^B=山田^太郎"},
    "bare": {name: ... for name in CLEAN if not name.endswith("UID")},
    "flag alone": {"PatientIdentityRemoved": "YES", "Laterality": "L"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, decoder: Decoder) -> Path:
    folder = tmp_path_factory.mktemp("objects")
    for number, changes in enumerate(FACES.values()):
        for item in results_of(radiograph(**changes), decoder):
            (folder / f"{number}.{item.kind}.dcm").write_bytes(item.data)
    for name, settings in {"refused": ResultsConfig(), "beyond": ANSWERED_ALL_THE_SAME}.items():
        for item in results_of(radiograph(), decoder, BEYOND, settings=settings):
            (folder / f"{name}.{item.kind}.dcm").write_bytes(item.data)
    # of an image on which nothing is present
    comprehensive = ResultsConfig(objects=("sr",), report_class="comprehensive")
    (made,) = results_of(radiograph(), decoder, answer_of(96, 64, ()), settings=comprehensive)
    assert made.sop_class_uid == "1.2.840.10008.5.1.4.1.1.88.33"
    (folder / "comprehensive.sr.dcm").write_bytes(made.data)
    return folder


def check(command: str, package: str, folder: Path) -> str:
    """What a program says of every file, in one shell."""
    program = command.split()[0]
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed: apt-get install {package}")
    loop = f'for file in {command.split()[-1]}; do {program} "$file" || echo "FAILED $file"; done'
    done = subprocess.run(
        ["sh", "-c", loop], cwd=folder, capture_output=True, text=True, errors="replace"
    )
    return done.stdout + done.stderr


def test_dciodvfy_finds_no_error(folder: Path) -> None:
    said = check("dciodvfy *.dcm", "dicom3tools", folder)
    assert len(list(folder.glob("*.dcm"))) == 3 * len(FACES) + 6
    assert said.count("GrayscaleSoftcopyPresentationState") >= len(FACES)
    assert [line for line in said.splitlines() if line.startswith(("Error", "FAILED"))] == []


def test_dcmtk_reads_reports_and_presentation_states(folder: Path) -> None:
    reports = check("dsrdump *.sr.dcm", "dcmtk", folder)
    assert reports.count("Imaging Measurement Report") >= len(FACES) + 1
    states = check("dcmpschk *.pr.dcm", "dcmtk", folder)
    assert [line for line in (reports + states).splitlines() if line[:1] in {"E", "F"}] == []
