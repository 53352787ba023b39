"""Records of a source of studies, made without a source."""

from pathlib import Path

from medclip_dcl.data.records import ImageRecord, RawStudies, Study, Text

CLEAR = Text("Clear.", "", "")


def studies(tmp_path: Path, *images: ImageRecord, **more: object) -> RawStudies:
    """Studies of the patients p1 to p9, s1 to s9, all clear; the files of images are there."""
    for image in images:
        (tmp_path / image.path).write_bytes(b"image")
    reports = [Study(f"s{number}", f"p{number}", CLEAR) for number in range(1, 10)]
    return RawStudies(tmp_path, list(images), **{"studies": reports} | more)  # type: ignore[arg-type]


def image(name: str, number: int, *, patient: int = 0, view: str = "PA") -> ImageRecord:
    """An image of study `sN` of patient `pN`, or of another patient."""
    return ImageRecord(name, f"s{number}", f"p{patient or number}", view, f"{name}.png")
