import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.records import FINE, IMAGES, read_truth, truth_files

IMAGE_TABLE = 'dicom_id,findings\ni,"[""effusion left"", ""edema""]"\nj,[]\n'
FINE_TABLE = (
    "finding,type,sentences\n"
    'effusion left,effusion,"[""There is a left pleural effusion.""]"\n'
    'edema,edema,"[""There is pulmonary edema."", ""There is edema.""]"\n'
)


def write(root, images=IMAGE_TABLE, fine=FINE_TABLE):
    (root / "truth").mkdir()
    (root / IMAGES).write_text(images)
    (root / FINE).write_text(fine)


def test_images_have_the_types_of_their_findings(tmp_path):
    write(tmp_path)
    truth = read_truth(tmp_path)
    assert truth.types_of == {"i": {"effusion", "edema"}, "j": frozenset()}
    assert truth.types == {"effusion", "edema"}
    assert len(truth_files(tmp_path)) == 2


def test_a_real_source_has_no_truth(tmp_path):
    assert read_truth(tmp_path) is None
    assert truth_files(tmp_path) == []


@pytest.mark.parametrize(
    "tables",
    [{"images": "dicom_id\ni\n"}, {"images": "dicom_id,findings\ni,[\n"}, {"fine": IMAGE_TABLE}],
)
def test_damaged_truth_is_refused(tmp_path, tables):
    write(tmp_path, **tables)
    with pytest.raises(StudyError, match="damaged"):
        read_truth(tmp_path)
