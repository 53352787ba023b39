import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.records import TRUTH, read_truth, truth_digests


def read(root, table):
    (root / TRUTH).parent.mkdir()
    (root / TRUTH).write_text(table)
    return read_truth(root)


def test_images_have_the_types_of_their_findings_and_a_real_source_has_no_truth(tmp_path):
    assert read_truth(tmp_path) is None
    assert truth_digests(tmp_path) == {}
    found = read(tmp_path, 'dicom_id,types\ni,"[""effusion"", ""edema""]"\nj,[]\n')
    assert found == {"i": {"effusion", "edema"}, "j": frozenset()}
    assert [*truth_digests(tmp_path)] == ["images.csv"]


@pytest.mark.parametrize("table", ["dicom_id\ni\n", "dicom_id,types\ni,[\n"])
def test_a_damaged_truth_is_refused(tmp_path, table):
    with pytest.raises(StudyError, match="damaged"):
        read(tmp_path, table)
