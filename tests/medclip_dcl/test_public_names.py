"""What outsiders may rely on is there, and costs nothing before it is asked for."""

import subprocess
import sys

import pytest

import medclip_dcl


@pytest.mark.parametrize("name", medclip_dcl.__all__)
def test_public_name_is_there_and_documented(name: str) -> None:
    assert len(getattr(medclip_dcl, name).__doc__) > 40


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = medclip_dcl.nonsense


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import medclip_dcl", ["torch", "transformers", "pyarrow", "pydantic"]),
        ("from medclip_dcl import debiased_contrastive_loss", ["transformers", "pyarrow"]),
        ("from medclip_dcl import open_image", ["torch", "transformers"]),
        ("from medclip_dcl import eta_from_pll", ["transformers"]),
        ("import medclip_dcl.config", ["torch", "transformers"]),  # every command reads it
    ],
)
def test_import_pays_only_for_what_it_names(statement: str, absent: list[str]) -> None:
    code = f"{statement}; import sys; print([n for n in {absent} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
