"""Pretrained weights -> a module, with an account of every key."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from medclip_dcl.errors import CheckpointError


@dataclass(frozen=True)
class LoadReport:
    """What became of each key of a checkpoint.

    Attributes:
        matched: keys that filled a weight of the module.
        missing: weights of the module that the checkpoint does not hold.
        unexpected: keys of the checkpoint that the module has no place for.
        layout: whose key layout the checkpoint has.
    """

    matched: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    layout: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many keys were matched, missing and unexpected."""
        return {name: len(getattr(self, name)) for name in ("matched", "missing", "unexpected")}


def fill(
    module: nn.Module,
    state: Mapping[str, Tensor],
    heads: tuple[str, ...],
    fresh: tuple[str, ...] = (),
    layout: str = "",
) -> LoadReport:
    """Copy weights into a module; nothing may be left over in silence.

    Args:
        module: module whose every weight must be filled.
        state: weights by the module's own keys.
        heads: prefixes of keys that belong to heads which the module leaves out.
        fresh: prefixes of weights that no checkpoint holds and that stay as they are.
        layout: whose key layout the checkpoint has.

    Returns:
        The account; `missing` holds fresh weights alone, `unexpected` head keys alone.

    Raises:
        CheckpointError: a weight is missing or has another shape, or a key belongs
            neither to the module nor to a head. The module is then unchanged.
    """
    own = module.state_dict()
    report = LoadReport(
        matched=tuple(sorted(own.keys() & state.keys())),
        missing=tuple(sorted(key for key in own.keys() - state.keys() if not _is_counter(key))),
        unexpected=tuple(sorted(state.keys() - own.keys())),
        layout=layout,
    )
    lost = [key for key in report.missing if not key.startswith(fresh)]
    strange = [key for key in report.unexpected if not key.startswith(heads)]
    if lost or strange or not report.matched:
        raise CheckpointError(
            f"checkpoint matches {len(report.matched)} of {len(own)} weights: "
            f"{len(lost)} missing {_sample(lost)}, "
            f"{len(strange)} unknown {_sample(strange)}; give weights of the same architecture"
        )
    for key in report.matched:
        if state[key].shape != own[key].shape:
            raise CheckpointError(
                f"weight {key} has shape {tuple(state[key].shape)}, the model asks for "
                f"{tuple(own[key].shape)}; set the model's sizes to those of the checkpoint"
            )
    module.load_state_dict({key: state[key] for key in report.matched}, strict=False)
    return report


def _is_counter(key: str) -> bool:
    return key.endswith("num_batches_tracked")  # converted checkpoints drop it; nothing reads it


def _sample(keys: tuple[str, ...] | list[str]) -> str:
    return f"({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})" if keys else "()"
