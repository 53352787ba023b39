from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.models.public.weights import read_tensors, weights_file

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(3)}


class Trap:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
def test_a_torch_file_gives_its_tensors(tmp_path: Path, nested: str | None) -> None:
    torch.save(STATE if nested is None else {nested: STATE, "epoch": 3}, tmp_path / "x.pth")
    torch.testing.assert_close(read_tensors(tmp_path / "x.pth"), STATE, atol=0, rtol=0)


def test_safetensors_come_before_a_pickle_and_half_precision_is_read_as_float32(tmp_path):
    torch.save({"old": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert weights_file(tmp_path).name == "pytorch_model.bin"
    save_file({"new": torch.ones(1)}, tmp_path / "model.safetensors")
    assert read_tensors(tmp_path).keys() == {"new"}
    save_file({"a": torch.ones(2, dtype=torch.float16), "n": torch.tensor(3)}, tmp_path / "x")
    found = read_tensors(tmp_path / "x")
    assert (found["a"].dtype, found["n"].dtype) == (torch.float32, torch.int64)


def test_code_and_whatever_holds_no_tensors_is_refused_and_not_run(tmp_path):
    file = tmp_path / "x.pt"
    for content, reason in (
        ({"a": Trap(tmp_path / "ran")}, "plain tensors"),
        ({"a": torch.ones(1), "note": "text"}, "more than tensors"),
        ({"a": torch.ones(1), "config": {"a": 1}}, "more than tensors"),
    ):
        torch.save(content, file)
        with pytest.raises(CheckpointError, match=reason):
            read_tensors(file)
    assert not (tmp_path / "ran").exists()
    for nothing in (tmp_path, tmp_path / "nowhere.pt"):
        with pytest.raises(CheckpointError, match="no weights"):
            read_tensors(nothing)
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="pointer of git-LFS; fetch it with git lfs pull"):
        read_tensors(tmp_path)


def test_the_content_tells_formats_apart_and_a_part_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path / "b.bin")
    for name in ("a.safetensors", "b.bin"):
        assert read_tensors(tmp_path / name)["a"].tolist() == [1, 1]
        whole = (tmp_path / name).read_bytes()
        for size in (0, 2, 9, len(whole) // 2, len(whole) - 1):
            (tmp_path / name).write_bytes(whole[:size])
            with pytest.raises(CheckpointError, match=rf"\({size} bytes\)"):
                read_tensors(tmp_path / name)


def test_layer_norms_of_the_first_bert_releases_have_their_later_names(tmp_path: Path) -> None:
    save_file({f"a.LayerNorm.{name}": torch.ones(1) for name in ("gamma", "beta")}, tmp_path / "x")
    assert read_tensors(tmp_path / "x").keys() == {"a.LayerNorm.weight", "a.LayerNorm.bias"}
