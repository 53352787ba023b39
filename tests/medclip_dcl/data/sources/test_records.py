"""What the contract says about inputs is what the readers read."""

from typing import get_args

from medclip_dcl.data.boxes import MS_CXR_COLUMNS
from medclip_dcl.data.dicom import metadata, reader
from medclip_dcl.data.manifest import INPUTS, READERS
from medclip_dcl.data.sources.dicom_folder import FILES
from medclip_dcl.data.sources.records import BoxColumn, Column, SourceConfig


def test_headers_of_a_folder_are_those_of_the_contract() -> None:
    assert set(FILES.names) == set(metadata.TAGS.values())


def test_no_tag_that_names_a_person_is_read_beside_the_patients_id() -> None:
    read = {*metadata.TAGS.values(), *reader.PUBLIC_TAGS, *reader.PIXEL_TAGS}
    personal = {name for name in read if name.startswith(("Patient", "Other", "Referring"))}
    assert personal == {"PatientID"}
    assert not {"StudyDescription", "AccessionNumber", "InstitutionName"} & read


def test_every_input_belongs_to_a_setting() -> None:
    kinds = set(SourceConfig.model_fields["kind"].annotation.__args__)
    assert {item.source for item in INPUTS} == kinds | {"source.boxes"}
    assert set(READERS) == kinds
    assert all(item.fields for item in INPUTS)
    assert len({(item.source, item.file) for item in INPUTS}) == len(INPUTS)
    assert any("annotations[].bbox" in item.names for item in INPUTS)


def test_every_role_of_a_column_is_explained() -> None:
    (table,) = (item for item in INPUTS if item.source == "table")
    named = [field.name for field in (*table.fields, *table.optional)]
    assert sorted(named) == sorted(f"source.columns.{role}" for role in get_args(Column))
    assert set(MS_CXR_COLUMNS) == set(get_args(BoxColumn))
    (boxes,) = (item for item in INPUTS if item.file.startswith("MS-CXR's CSV"))
    assert set(boxes.names) == set(MS_CXR_COLUMNS.values())
