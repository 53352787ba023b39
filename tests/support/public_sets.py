"""Small trees in the layout in which public sets are published: a few studies, made-up words."""

import csv
import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.dicom import dicom_bytes, ramp, raster_bytes


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raster_bytes(np.arange(64, dtype=np.uint8).reshape(8, 8), "PNG"))


def write_csv(path: Path, header: str, rows: Iterable[Iterable[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as stream:
        stream.write(f"{header}\n")
        csv.writer(stream, lineterminator="\n").writerows(rows)


_REPORT = """<?xml version="1.0" encoding="utf-8"?>
<eCitation>
  <uId id="{uid}"/>
  <pmcId id="{number}"/>
  <licenseType>open-access</licenseType>
  <MeSH><major>normal</major><automatic>lung</automatic></MeSH>
  <MedlineCitation Owner="Indiana University" Status="supplied by publisher">
    <Abstract>
      <AbstractText Label="COMPARISON">None.</AbstractText>
      <AbstractText Label="FINDINGS">{findings}</AbstractText>
      <AbstractText Label="IMPRESSION">{impression}</AbstractText>
    </Abstract>
  </MedlineCitation>
{images}</eCitation>
"""
_IMAGE = """  <parentImage id="{name}">
    <figureId>F1</figureId>
    <caption>Xray Chest PA and Lateral</caption>
    <panel type="single"><url>/extract/{name}.jpg</url></panel>
  </parentImage>
"""


def _report(uid: str, findings: str, impression: str, images: list[str]) -> str:
    body = "".join(_IMAGE.format(name=name) for name in images)
    number = uid.removeprefix("CXR")
    return _REPORT.format(
        uid=uid, number=number, findings=findings, impression=impression, images=body
    ).replace("></AbstractText>", "/>")


def write_open_i_xml(root: Path) -> None:
    """Open-i as its archive has it: a report without text, one without images, and broken ones."""
    reports = root / "NLMCXR_reports/ecgen-radiology"
    reports.mkdir(parents=True)
    images = {"CXR1": ["CXR1_1_IM-0001-3001", "CXR1_1_IM-0001-4001"], "CXR2": ["CXR2_IM-0652-1001"]}
    texts = {"CXR1": ("", "Normal chest x-XXXX."), "CXR2": ("", ""), "CXR10": ("Clear.", "")}
    for uid, (findings, impression) in texts.items():
        text = _report(uid, findings, impression, images.get(uid, []))
        (reports / f"{uid.removeprefix('CXR')}.xml").write_text(text, encoding="utf-8")
    (reports / "3.xml").write_text("<eCitation><uId id='CXR3'>", encoding="utf-8")
    bomb = '<!DOCTYPE a [<!ENTITY b "c">]>' + _report("CXR4", "Clear.", "", [])[38:]
    (reports / "4.xml").write_text(bomb, encoding="utf-8")
    for names in images.values():
        for name in names:
            write_image(root / f"NLMCXR_png/{name}.png")


def write_open_i_projections(root: Path) -> None:
    """The list of projections, as the CSV form names images."""
    rows = [(1, "1_IM-0001-4001", "Frontal"), (1, "1_IM-0001-3001", "Lateral")]
    rows.append((2, "2_IM-0652-1001", "Frontal"))
    files = [(uid, f"{name}.dcm.png", view) for uid, name, view in rows]
    write_csv(root / "indiana_projections.csv", "uid,filename,projection", files)


def write_open_i_csv(root: Path) -> None:
    """Open-i as its public copy has it: two reports, of which the first has images."""
    header = "uid,MeSH,Problems,image,indication,comparison,findings,impression"
    same = ("normal", "normal", "Xray Chest PA and Lateral", "Cough", "None.")
    rows = [(1, *same, "Clear, no\nchange.", "Normal."), (2, *same, "", "")]
    write_csv(root / "indiana_reports.csv", header, rows)
    write_open_i_projections(root)
    for name in ("1_IM-0001-4001", "1_IM-0001-3001", "2_IM-0652-1001"):
        write_image(root / f"images/images_normalized/{name}.dcm.png")


def write_rexgradient(root: Path) -> None:
    """A file per split, an object of studies by id; the first study has two images."""
    (root / "metadata").mkdir(parents=True)
    for split, names in {"train": "ab", "valid": "c", "test": "d"}.items():
        studies = {}
        for name in names:
            views = ["PA", "LATERAL"] if name == "a" else ["AP"]
            files = [
                f"GRDNP{name}/ACC{name}/studies/1.{name}/series/1/instances/{k}.png"
                for k in range(len(views))
            ]
            for file in files:
                write_image(root / "deid_png" / file)
            studies[f"pGRDNP{name}_aACC{name}_s1.{name}"] = {
                "PatientID": f"GRDNP{name}",
                "AccessionNumber": f"ACC{name}",
                "StudyInstanceUid": f"1.{name}",
                "PatientSex": "F",
                "PatientAge": "061Y",
                "StudyDate": "20150101",
                "Indication": "Cough.",
                "Comparison": "None.",
                "Findings": f"No pleural effusion {name}.",
                "Impression": "Normal.",
                "ImagePath": [f"../deid_png/{file}" for file in files],
                "ImageViewPosition": views,
            }
        path = root / "metadata" / f"{split}_metadata_view_position.json"
        path.write_text(json.dumps(studies, indent=2), encoding="utf-8")


def write_chexpert_plus(root: Path) -> None:
    """A patient with two studies, the first with a lateral image too; another patient."""
    images = [(1, 1, "frontal"), (1, 1, "lateral"), (1, 2, "frontal"), (2, 1, "frontal")]
    rows, labels = [], []
    for patient, study, side in images:
        stem = f"train/patient{patient:05d}/study{study}/view1_{side}"
        path = root / f"{stem}.dcm"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dicom_bytes(ramp()))
        view = "AP" if side == "frontal" else ""
        said = f"Finding {patient} {study}."
        ids = (f"{stem}.jpg", f"{stem}.dcm", side.title(), view, f"patient{patient:05d}", study)
        rows.append((*ids, 61, "Female", "train", f"FINDINGS:\n{said}", said, "Normal heart."))
        labels.append({"path_to_image": f"{stem}.jpg", "Edema": float(study - 1), "Fracture": None})
    header = "path_to_image,path_to_dcm,frontal_lateral,ap_pa,deid_patient_id,"
    header += "patient_report_date_order,age,sex,split,report,section_findings,section_impression"
    write_csv(root / "df_chexpert_plus_240401.csv", header, rows)
    lines = "\n".join(json.dumps(row) for row in labels)
    (root / "report_fixed.json").write_text(f"{lines}\n", encoding="utf-8")


PADCHEST = (
    *("atelectasis", "cardiomegaly", "consolidation", "pulmonary edema", "mediastinal enlargement"),
    *("fracture", "nodule", "infiltrates", "normal", "pleural effusion", "pleural thickening"),
    *("pneumonia", "pneumothorax", "pacemaker"),
)
"""A name of each finding, as PadChest lists it."""


def write_padchest(root: Path) -> None:
    """A frontal image of each finding, a lateral one, and one that was excluded."""
    header = ",ImageID,ImageDir,StudyDate_DICOM,StudyID,PatientID,ViewPosition_DICOM,Projection,"
    header += "MethodProjection,Pediatric,Rows_DICOM,Columns_DICOM,ReportID,Report,MethodLabel,"
    header += "Labels,Localizations"
    listed = [("PA", [name]) for name in PADCHEST]
    listed += [("L", [PADCHEST[0]]), ("AP_horizontal", ["exclude"])]
    rows = []
    for number, (view, labels) in enumerate(listed):
        study = 0 if view == "L" else number
        image = f"{number:039d}_00-000-000.png"
        write_image(root / str(number % 3) / image)
        ids = (number, image, number % 3, 20150101, f"study{study}", f"patient{study // 2}")
        said = (1000 + study, f"sin deram pleural {study} .", "Physician")
        listed_names = str([f" {name}" for name in labels])
        facts = ("", view, "Manual", "No", 8, 8)
        rows.append((*ids, *facts, *said, listed_names, "['loc basal']"))
    write_csv(root / "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv", header, rows)


def write_padchest_gr(root: Path) -> None:
    """Three studies: one box, two boxes, and a sentence that has none."""
    studies = []
    for number, boxes in enumerate(
        [[[0.1, 0.2, 0.4, 0.6]], [[0, 0, 0.5, 0.5], [0.5, 0, 1, 1]], []]
    ):
        image = f"{number:039d}_gr.png"
        write_image(root / "PadChest_GR" / image)
        sentence = {"sentence_en": f"Opacity {number} is seen.", "sentence_es": "opacidad"}
        normal = {"sentence_en": "No pleural effusion.", "sentence_es": "sin derrame"}
        findings = [normal | {"abnormal": False}]
        if boxes:
            findings.append(
                sentence | {"abnormal": True, "boxes": boxes, "labels": ["infiltrates"]}
            )
        studies.append({"StudyID": f"study{number}", "ImageID": image, "findings": findings})
    path = root / "grounded_reports_20240819.json"
    path.write_text(json.dumps(studies), encoding="utf-8")
    rows = [
        (f"study{number}", f"{number:039d}_gr.png", f"patient{number // 2}", split, label)
        for number, split in enumerate(("train", "train", "test"))
        for label in ("infiltrates", "normal")
    ]
    write_csv(root / "master_table.csv", "StudyID,ImageID,PatientID,split,label", rows)


def write_nih(root: Path) -> None:
    """Three images of two patients; a box on one. The headers are the release's own."""
    header = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,"
    header += "View Position,OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
    names = ("00000001_000.png", "00000001_001.png", "00000002_000.png")
    labels = ("Cardiomegaly", "Cardiomegaly|Effusion", "No Finding")
    rows = []
    for name, label in zip(names, labels, strict=True):
        write_image(root / "images" / name)
        rows.append((name, label, 0, int(name[:8]), 58, "M", "PA", 2682, 2749, 0.143, 0.143, ""))
    write_csv(root / "Data_Entry_2017.csv", header, rows)
    box = ("00000001_001.png", "Cardiomegaly", 256.0, 512.0, 128.5, 256.0, "", "", "")
    write_csv(root / "BBox_List_2017.csv", "Image Index,Finding Label,Bbox [x,y,w,h],,,", [box])


VINDR = (
    "Aortic enlargement,Atelectasis,Calcification,Cardiomegaly,Clavicle fracture,Consolidation,"
    "Edema,Emphysema,Enlarged PA,ILD,Infiltration,Lung Opacity,Lung cavity,Lung cyst,"
    "Mediastinal shift,Nodule/Mass,Pleural effusion,Pleural thickening,Pneumothorax,"
    "Pulmonary fibrosis,Rib fracture,Other lesion,COPD,Lung tumor,Pneumonia,Tuberculosis,"
    "Other disease,No finding"
)
"""Names of the labels, in the order of the columns."""


def write_vindr(root: Path) -> None:
    """Two test images, one with two boxes, one without a finding."""
    names, findings = ("0a", "0b"), VINDR.split(",")
    shown = {"0a": {"Cardiomegaly", "Pleural effusion"}, "0b": {"No finding"}}
    (root / "test").mkdir(parents=True)
    for name in names:
        (root / f"test/{name}.dicom").write_bytes(dicom_bytes(ramp()))
    rows = [(name, *(int(finding in shown[name]) for finding in findings)) for name in names]
    write_csv(root / "annotations/image_labels_test.csv", f"image_id,{VINDR}", rows)
    boxes = [
        ("0a", "Cardiomegaly", 5.0, 10.0, 35.0, 30.5),
        ("0a", "Pleural effusion", 0.0, 30.0, 20.0, 40.0),
        ("0b", "No finding", "", "", "", ""),
    ]
    header = "image_id,class_name,x_min,y_min,x_max,y_max"
    write_csv(root / "annotations/annotations_test.csv", header, boxes)


def write_tbx11k(root: Path) -> None:
    """A healthy image and a sick one, and two with tuberculosis, one of a kind."""
    shown = ("health/h1", "sick/s1", "tb/tb1", "tb/tb2")
    kinds = ("ActiveTuberculosis", "ObsoletePulmonaryTuberculosis", "PulmonaryTuberculosis")
    (root / "annotations/json").mkdir(parents=True)
    images = [
        {"id": number, "file_name": f"{name}.png", "width": 8, "height": 8}
        for number, name in enumerate(shown)
    ]
    for name in shown:
        write_image(root / f"imgs/{name}.png")
    boxed = [(2, 1, [1, 2, 3.5, 4]), (2, 1, [5, 5, 2, 2]), (3, 2, [0, 0, 4, 4])]
    annotations = [
        {"image_id": image, "category_id": kind, "bbox": box} for image, kind, box in boxed
    ]
    categories = [{"id": number, "name": name} for number, name in enumerate(kinds, 1)]
    tree = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations/json/TBX11K_val.json").write_text(json.dumps(tree), encoding="utf-8")


SETS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "train/rexgradient": ("REXGRADIENT", write_rexgradient),
    "train/chexpert_plus": ("CHEXPERT_PLUS", write_chexpert_plus),
    "train/padchest": ("PADCHEST", write_padchest),
    "evaluate/padchest": ("PADCHEST", write_padchest),
    "evaluate/padchest_gr": ("PADCHEST_GR", write_padchest_gr),
    "evaluate/nih_chestxray14": ("NIH", write_nih),
    "evaluate/tbx11k": ("TBX11K", write_tbx11k),
    "evaluate/vindr_cxr": ("VINDR", write_vindr),
}
"""Config -> the variable that names its folder, and what writes such a folder."""
