"""Structured report, TID 1500, in the one shape that OHIF shows.

Under Imaging Measurements a group for each finding that is present and has a box, then one over
the image's outline with a number per finding; all findings again under Qualitative Evaluations.
A measurement group without coordinates, though valid, makes OHIF show a black pane, and so does a
report with Qualitative Evaluations alone. OHIF labels a box with the names of its numbers and not
with the finding's code, so the finding's name stands in the name of the number.

Of an image that was not analysed there is the outline without a number, and why there is none.

Source: DICOM PS3.16, TID 1500, TID 1410, CID 219, CID 6042.
"""

from collections.abc import Sequence

import numpy as np
from highdicom import sr
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code

from medclip_dcl.schemas import FindingAnswer, HeadAnswer, Rectangle

from .instance import (
    NAME,
    NOTICE,
    Answered,
    decision_of,
    finding_code,
    label_of,
    make_uid,
    plain,
    private_code,
)

_BOUNDED_BY = Code("75958009", "SCT", "Bounded by")
_EVALUATIONS = Code("C0034375", "UMLS", "Qualitative Evaluations")
_COMMENT = Code("121106", "DCM", "Comment")
_AI = Code("123110", "DCM", "Artificial Intelligence")
_ENGLISH = sr.CodedConcept("en-US", "RFC5646", "English (United States)")
_RADIOGRAPH = Code("43468-8", "LN", "XR unspecified body region")
_SCORE = Code("{score}", "UCUM", "score")
_CLASSES = {"3d": sr.Comprehensive3DSR, "comprehensive": sr.ComprehensiveSR}


def structured_report(answered: Answered) -> Dataset:
    """Make the report of an answer; `Answered.encode` puts in whose it is."""
    image = _reference(answered.image)
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=make_uid("device", answered.answer.model),
        name=NAME,
        manufacturer_name=NAME,
        model_name=NAME,
        serial_number=answered.answer.model[:16],
    )
    context = sr.ObservationContext(
        observer_device_context=sr.ObserverContext(codes.DCM.Device, device)
    )
    findings = [] if answered.is_refused else answered.answer.findings
    groups = [
        _group(answered, image, label_of(finding), box, [finding], finding)
        for finding, box in answered.boxes()
        if findings
    ]
    outline = Rectangle(x=0, y=0, width=image.Columns, height=image.Rows)
    groups.append(_group(answered, image, "Image", outline, findings, None))
    report = sr.MeasurementReport(
        observation_context=context,
        procedure_reported=_procedure(answered.image),
        imaging_measurements=groups,
        title=codes.DCM.ImagingMeasurementReport,
        language_of_content_item_and_descendants=sr.LanguageOfContentItemAndDescendants(_ENGLISH),
        referenced_images=[image],
    )
    # MeasurementReport of highdicom has no place for Qualitative Evaluations, and needs a group.
    report[0].ContentSequence.append(_evaluations(answered, findings))
    made = _CLASSES[answered.settings.report_class](
        evidence=[image],
        content=report[0],
        series_instance_uid=answered.uid("sr", "series"),
        series_number=1,
        sop_instance_uid=answered.uid("sr", "instance"),
        instance_number=1,
        manufacturer=NAME,
        is_complete=True,
        content_date=answered.answered_at.date(),
        content_time=answered.answered_at.time(),
    )
    assert isinstance(made, Dataset)
    return made


def _reference(image: Dataset) -> Dataset:
    """Make of a header what highdicom looks at, without a person in it.

    Names, dates and character sets that highdicom raises on (an empty first value, as Japanese
    images have it, sex `X`, ...) never reach it; `Answered.encode` puts the image's own in.
    """
    reference = Dataset()
    for name in ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID"):
        setattr(reference, name, image[name].value)
    reference.Rows, reference.Columns = image.Rows, image.Columns
    if "FrameOfReferenceUID" in image:
        reference.FrameOfReferenceUID = image.FrameOfReferenceUID
    for name in ("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber"):
        setattr(reference, name, None)
    reference.StudyID = reference.StudyDate = reference.StudyTime = None
    # Highdicom's image library demands both of every CR and DX and raises where they lack. It
    # looks at Modality for that alone; the modality that it writes comes from the SOP class.
    reference.Modality = "OT"
    if "ImagerPixelSpacing" in image and "PatientOrientation" in image:
        reference.Modality = image.get("Modality", "OT")
        reference.ImagerPixelSpacing = image.ImagerPixelSpacing
        reference.PatientOrientation = image.PatientOrientation
    return reference


def _procedure(image: Dataset) -> Code:
    if "ProcedureCodeSequence" not in image:
        return _RADIOGRAPH
    item = image.ProcedureCodeSequence[0]
    return Code(item.CodeValue, item.CodingSchemeDesignator, plain(item.CodeMeaning))


def _group(
    answered: Answered,
    image: Dataset,
    label: str,
    box: Rectangle,
    findings: Sequence[FindingAnswer],
    about: FindingAnswer | None,
) -> sr.PlanarROIMeasurementsAndQualitativeEvaluations:
    """Make a measurement group: a closed polyline, and a number for each of the findings."""
    region = sr.ImageRegion(
        graphic_type=sr.GraphicTypeValues.POLYLINE,
        graphic_data=np.array(answered.corners(box)),
        source_image=sr.SourceImageForRegion(image.SOPClassUID, image.SOPInstanceUID),
    )
    algorithm = sr.AlgorithmIdentification(
        name=NAME,
        version=answered.answer.model[:16],
        manufacturer=NAME,
        family=_AI,
        parameters=[*answered.made_by, f"settings:{answered.uid('settings')}", NOTICE],
    )
    uid = answered.uid("group", about.name if about else "")
    return sr.PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(uid=uid, identifier=label),
        referenced_region=region,
        finding_type=finding_code(about) if about else None,
        algorithm_id=algorithm,
        measurements=[_number(finding) for finding in findings] or None,
        geometric_purpose=_BOUNDED_BY,
    )


def _number(finding: FindingAnswer) -> sr.Measurement:
    # Per cent: OHIF prints the unit's code, and "0.83 1" reads badly.
    if finding.probability is not None:
        value, unit, what = round(100 * finding.probability, 2), codes.UCUM.Percent, "probability"
    else:
        value, unit, what = round(finding.score, 4), _SCORE, "score, no probability"
    name = private_code(f"{label_of(finding)[: 62 - len(what)]}: {what}")
    return sr.Measurement(name=name, value=value, unit=unit)


def _evaluations(answered: Answered, findings: Sequence[FindingAnswer]) -> sr.ContainerContentItem:
    kinds = sr.RelationshipTypeValues.CONTAINS
    container = sr.ContainerContentItem(
        name=_EVALUATIONS, is_content_continuous=False, relationship_type=kinds
    )
    items: list[sr.ContentItem] = []
    if answered.is_refused:
        what, outcome = codes.DCM.SummaryOfAnalyses, codes.DCM.NotAttempted
        items.append(sr.CodeContentItem(what, outcome, kinds))
    if answered.warning:
        items.append(sr.TextContentItem(_COMMENT, answered.warning, kinds))
    coded: list[tuple[FindingAnswer | HeadAnswer, Code, str]]
    coded = [(finding, finding_code(finding), "") for finding in findings]
    coded += [(head, private_code(f"{label_of(head)}, head"), ", head") for head in answered.heads]
    for finding, code, what in coded:
        if finding.decision is not None:
            value = codes.SCT.Present if finding.decision else codes.SCT.Absent
            items.append(sr.CodeContentItem(code, value, kinds))
        items.append(sr.TextContentItem(_COMMENT, describe(finding, what), kinds))
    container.ContentSequence = sr.ContentSequence(items)
    return container


def describe(finding: FindingAnswer | HeadAnswer, what: str = "") -> str:
    """Put the figures of a finding or of a head into a line; `what` stands behind its name."""
    line = f"{label_of(finding)}{what}: {decision_of(finding)}, score {finding.score:.3f}"
    if finding.probability is None:
        return f"{line}, no probability: {plain(finding.probability_note)}"
    return f"{line}, probability {finding.probability:.1%}"
