"""Open-i in its two forms: XML reports as the archive holds them, or CSV, and PNG images."""

from pathlib import Path

import numpy as np

from tests.support.dicom import raster_bytes

XML = """<?xml version="1.0" encoding="utf-8"?>
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
IMAGE = """  <parentImage id="{name}">
    <figureId>F1</figureId>
    <caption>Xray Chest PA and Lateral</caption>
    <panel type="single"><url>/extract/{name}.jpg</url></panel>
  </parentImage>
"""


def xml(uid: str, findings: str, impression: str, images: list[str]) -> str:
    body = "".join(IMAGE.format(name=name) for name in images)
    number = uid.removeprefix("CXR")
    return XML.format(
        uid=uid, number=number, findings=findings, impression=impression, images=body
    ).replace("></AbstractText>", "/>")


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raster_bytes(np.arange(64, dtype=np.uint8).reshape(8, 8), "PNG"))


def write_xml_form(root: Path) -> None:
    """Three reports, the second without text, the third without images; and two broken ones."""
    reports = root / "NLMCXR_reports/ecgen-radiology"
    reports.mkdir(parents=True)
    images = {"CXR1": ["CXR1_1_IM-0001-3001", "CXR1_1_IM-0001-4001"], "CXR2": ["CXR2_IM-0652-1001"]}
    texts = {"CXR1": ("", "Normal chest x-XXXX."), "CXR2": ("", ""), "CXR10": ("Clear.", "")}
    for uid, (findings, impression) in texts.items():
        text = xml(uid, findings, impression, images.get(uid, []))
        (reports / f"{uid.removeprefix('CXR')}.xml").write_text(text, encoding="utf-8")
    (reports / "3.xml").write_text("<eCitation><uId id='CXR3'>", encoding="utf-8")
    bomb = '<!DOCTYPE a [<!ENTITY b "c">]>' + xml("CXR4", "Clear.", "", [])[38:]
    (reports / "4.xml").write_text(bomb, encoding="utf-8")
    for names in images.values():
        for name in names:
            write_image(root / f"NLMCXR_png/{name}.png")


def write_projections(root: Path) -> None:
    """The list of projections, as the CSV form names images."""
    lines = ["uid,filename,projection"]
    lines += ["1,1_IM-0001-4001.dcm.png,Frontal", "1,1_IM-0001-3001.dcm.png,Lateral"]
    lines += ["2,2_IM-0652-1001.dcm.png,Frontal"]
    (root / "indiana_projections.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_csv_form(root: Path) -> None:
    """Two reports, of which the first has images, in the form of the public copy."""
    lines = ["uid,MeSH,Problems,image,indication,comparison,findings,impression"]
    lines += ['1,normal,normal,Xray Chest PA and Lateral,Cough,None.,"Clear, no\nchange.",Normal.']
    lines += ["2,normal,normal,Xray Chest PA and Lateral,Cough,None.,,"]
    (root / "indiana_reports.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_projections(root)
    for name in ("1_IM-0001-4001", "1_IM-0001-3001", "2_IM-0652-1001"):
        write_image(root / f"images/images_normalized/{name}.dcm.png")
