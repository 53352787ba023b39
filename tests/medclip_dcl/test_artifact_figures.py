import pytest

from medclip_dcl.artifact import ArtifactType, make_fingerprint, read_object
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.errors import ArtifactCorrupt
from medclip_dcl.files import write_text

ARTIFACT = ArtifactType("measured", 1, "measure")


def sealed(folder, text):
    with write_artifact(folder, ARTIFACT, make_fingerprint(ARTIFACT, {}, {})) as writer:
        write_text(writer.directory / "figures.json", text)
        return writer.commit({})


def test_an_object_comes_back(tmp_path):
    artifact = sealed(tmp_path / "measured", '{"auc": 0.5}')
    assert read_object(artifact, "figures.json", ARTIFACT) == {"auc": 0.5}


@pytest.mark.parametrize(("text", "said"), [("{", "cannot be read"), ("[1]", "rerun measure")])
def test_anything_else_is_corrupt(tmp_path, text, said):
    artifact = sealed(tmp_path / "measured", text)
    with pytest.raises(ArtifactCorrupt, match=said):
        read_object(artifact, "figures.json", ARTIFACT)
