"""What outsiders may rely on is there, and costs nothing before it is asked for."""

import subprocess
import sys

import pytest

import medclip_dcl


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = medclip_dcl.nonsense


LOSSES = (
    "debiased_contrastive_loss, info_nce_loss, gather_with_grad, debiasing_gauges, "
    "multi_positive_loss"
)
HEAVY = {"transformers", "pydantic", "accelerate", "pyarrow", "sklearn", "safetensors"}


@pytest.mark.parametrize(
    "imports",
    [
        [
            ("import medclip_dcl", {"torch", *HEAVY}),
            (f"from medclip_dcl import {LOSSES}", HEAVY),
            ("from medclip_dcl import eta_from_pll", {"transformers"}),
        ],
        [
            ("from medclip_dcl import open_image", {"torch", "transformers"}),
            ("import pipelines.config", {"torch", "transformers"}),  # every command reads it
        ],
    ],
    ids=["mathematics", "images"],
)
def test_import_pays_only_for_what_it_names(imports: list[tuple[str, set[str]]]) -> None:
    """One import after the other, in a process of their own."""
    lines = [f"{line}\nprint(sorted({absent} & sys.modules.keys()))" for line, absent in imports]
    code = "\n".join(["import sys", *lines])
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.split() == ["[]"] * len(imports)
