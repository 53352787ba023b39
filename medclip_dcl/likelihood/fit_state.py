"""The saved state of a fit: safetensors in the draft, gone once the model is written."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from medclip_dcl.artifacts.files import write_bytes
from medclip_dcl.likelihood.fitting import FitState

_NAME = "fit_state.safetensors"


class FitStateFile:
    """Keeps the newest state of a fit in a folder.

    Args:
        folder: the draft's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME

    def write(self, state: FitState) -> None:
        """Replace the saved state; a kill leaves the old one or the new one.

        Args:
            state: where the fit stands.
        """
        tensors = {name: tensor.cpu().contiguous() for name, tensor in state.tensors.items()}
        write_bytes(self._path, save(tensors, metadata={"step": str(state.step)}))

    def read(self) -> FitState | None:
        """Read the saved state.

        Returns:
            The state, or None where there is none, or none that can be read.
        """
        try:
            with safe_open(self._path, framework="pt") as file:
                step = int(file.metadata()["step"])
                names = file.keys()  # the file itself cannot be iterated
                return FitState(step, {name: file.get_tensor(name) for name in names})
        except (OSError, SafetensorError, KeyError, ValueError):
            return None

    def remove(self) -> None:
        """Delete the saved state."""
        self._path.unlink(missing_ok=True)
