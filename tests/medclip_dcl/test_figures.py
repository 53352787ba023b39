import pytest

from medclip_dcl.artifact import Kind, drafting, make_recipe, read_object
from medclip_dcl.errors import ArtifactCorrupt
from medclip_dcl.files import write_text

KIND = Kind("measured", 1, "measure")


def sealed(folder, text):
    with drafting(folder, KIND, make_recipe(KIND, {}, {})) as draft:
        write_text(draft.directory / "figures.json", text)
        return draft.seal({})


def test_an_object_comes_back(tmp_path):
    artifact = sealed(tmp_path / "measured", '{"auc": 0.5}')
    assert read_object(artifact, "figures.json", KIND) == {"auc": 0.5}


@pytest.mark.parametrize(("text", "said"), [("{", "cannot be read"), ("[1]", "rerun measure")])
def test_anything_else_is_corrupt(tmp_path, text, said):
    artifact = sealed(tmp_path / "measured", text)
    with pytest.raises(ArtifactCorrupt, match=said):
        read_object(artifact, "figures.json", KIND)
