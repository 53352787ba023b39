import numpy as np
import pytest

from api.errors import ApiError
from api.uploads import parse_box, parse_findings
from medclip_dcl.core.errors import QueryError
from medclip_dcl.data.grayscale import SquareImage


@pytest.mark.parametrize("text", ["\ud800", "[" * 100_000, "[NaN, 1, 2, 3]", '["1", 2, 3, 4]'])
def test_boxes_and_findings_that_are_no_strict_json_are_refused(text: str) -> None:
    image = SquareImage(
        np.zeros((8, 8), np.uint8), 96, 64, constant=True, source="png", inverted=False
    )
    with pytest.raises(ApiError, match="invalid_request"):
        parse_box(text, image)
    with pytest.raises((ApiError, QueryError)):
        parse_findings(text)
