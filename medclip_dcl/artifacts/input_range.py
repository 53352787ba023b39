"""Range of the training films, kept beside a published model: what a film is held against.

input_range.json    mean and precision of the films' features, the threshold, the films that
                    both come from, and the share of like films that lies beyond
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from medclip_dcl.artifacts.files import write_text
from medclip_dcl.errors import CheckpointError

FILE = "input_range.json"


@dataclass(frozen=True)
class InputRange:
    """How far a film may lie from those that a model was trained on.

    Attributes:
        mean: of each feature.
        precision: inverse covariance of the features, rows.
        threshold: squared Mahalanobis distance beyond which a film is out of range.
        films: training films that all this comes from.
        rate: expected share of films like these that lies beyond the threshold.
    """

    mean: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    threshold: float
    films: int
    rate: float


def write_input_range(folder: Path, found: InputRange) -> None:
    """Write the range into a model's draft.

    Args:
        folder: the draft's directory.
        found: the range.
    """
    write_text(folder / FILE, json.dumps(asdict(found)) + "\n")


def read_input_range(folder: Path) -> InputRange | None:
    """Read the range of a published model whose bytes have been checked.

    Args:
        folder: the model's folder.

    Returns:
        The range; None where the model was published without one.

    Raises:
        CheckpointError: this version cannot read it.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        tree["precision"] = tuple(map(tuple, tree["precision"]))
        return InputRange(**(tree | {"mean": tuple(tree["mean"])}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{FILE} of {folder} cannot be read by this version; rerun train"
        ) from error
