"""What the contract says of inputs is what the readers read."""

from medclip_dcl.data.dicom import metadata, reader
from medclip_dcl.data.sources.records import BOX_JSON, DICOM_FILES, INPUTS, SourceConfig


def test_headers_of_a_folder_are_those_of_the_contract() -> None:
    assert set(DICOM_FILES.names) == set(metadata.TAGS.values())


def test_no_tag_that_names_a_person_is_read_beside_the_patients_id() -> None:
    read = {*metadata.TAGS.values(), *reader.PUBLIC_TAGS, *reader.PIXEL_TAGS}
    personal = {name for name in read if name.startswith(("Patient", "Other", "Referring"))}
    assert personal == {"PatientID"}
    assert not {"StudyDescription", "AccessionNumber", "InstitutionName"} & read


def test_every_input_belongs_to_a_setting() -> None:
    kinds = set(SourceConfig.model_fields["kind"].annotation.__args__)
    assert {item.source for item in INPUTS} | {"table"} == kinds | {"source.boxes"}
    assert all(item.fields for item in INPUTS)
    assert len({(item.source, item.file) for item in INPUTS}) == len(INPUTS)
    assert "annotations[].bbox" in BOX_JSON.names
