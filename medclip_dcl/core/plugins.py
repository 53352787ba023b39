"""Code of your own by name: losses, sources of studies, image encoders, metrics, routes.

A plugin is a Python file or module that registers what it adds when it is imported. The setting
`plugins` of a config, or of the service, names it; an installed package may do without, by an entry
point of the group `medclip_dcl.losses`, `medclip_dcl.sources` or `medclip_dcl.image_encoders`.

Nothing else is imported: a model package names an encoder, and never where its code is.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from medclip_dcl.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

_Item = TypeVar("_Item", bound=Callable[..., Any])
_FILES: dict[str, Path] = {}  # module of a plugin -> its file


class Registry(Mapping[str, _Item]):
    """Names and what they stand for: those built in, and those that plugins register.

    `own` are names that the code itself answers to, and that nobody else may take: where they map
    to `MODULE:FUNCTION`, that is what the name stands for, and the module is imported when it is
    asked for.
    """

    def __init__(
        self, what: str, group: str = "", own: Sequence[str] | Mapping[str, str] = ()
    ) -> None:
        self._what, self._group, self.own = what, group, tuple(own)
        self._places = own if isinstance(own, Mapping) else {}
        self._items: dict[str, _Item] = {}

    def register(self, name: str) -> Callable[[_Item], _Item]:
        """Make a decorator that keeps a function under a name.

        Raises:
            ConfigError: the name is taken.
        """

        def keep(item: _Item) -> _Item:
            held = self._items.get(name)
            if name in self.own or (held and held.__module__ != item.__module__):
                raise ConfigError(f"there is a {self._what} {name!r} already; name yours otherwise")
            self._items[name] = item
            return item

        return keep

    def check(self, name: str) -> str:
        """Return the name back; ValueError, for a setting's validator, where nothing has it."""
        if name not in self.own and self.get(name) is None:
            names = [*self.own, *self._items]
            near = get_close_matches(name, names, n=1) or names
            raise ValueError(
                f"there is no {self._what} {name!r}; give {' or '.join(near)}, or name the module "
                "that registers it in `plugins`"
            )
        return name

    def __getitem__(self, name: str) -> _Item:
        if name in self._places:
            module, _, function = self._places[name].partition(":")
            built_in: _Item = getattr(importlib.import_module(module), function)
            return built_in
        # Of an installed package; the metadata of all of them take 10 ms to look through.
        if self._group and name not in self.own and name not in self._items:
            for point in entry_points(group=f"medclip_dcl.{self._group}", name=name):
                self._items[name] = point.load()
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


_OBJECTIVE, _SOURCES = "medclip_dcl.training.objective", "medclip_dcl.data.sources"

LOSSES: Registry[Callable[..., Any]] = Registry(
    "loss",
    "losses",
    {
        "infonce": f"{_OBJECTIVE}:info_nce",
        "debiased": f"{_OBJECTIVE}:debiased",
        "multipositive": f"{_OBJECTIVE}:multi_positive",
    },
)
"""`objective.kind` -> the loss of one direction: `ObjectiveInputs` -> a scalar tensor with
gradient, the mean over its anchors."""
SOURCES: Registry[Callable[..., Any]] = Registry(
    "source",
    "sources",
    {
        "mimic_cxr": f"{_SOURCES}.mimic_cxr:read_mimic_cxr",
        "open_i": f"{_SOURCES}.open_i:read_open_i",
        "table": f"{_SOURCES}.table:read_mapped_table",
        "dicom": f"{_SOURCES}.readers:read_dicom_folder",
        "huggingface": f"{_SOURCES}.huggingface:read_huggingface",
    },
)
"""`source.kind` -> reader: root, settings, and a function that turns path settings into paths ->
`RawStudies`."""
IMAGE_ENCODERS: "Registry[Callable[..., nn.Module]]" = Registry(
    "image encoder",
    "image_encoders",
    ("resnet", "resnet18", "resnet34", "resnet50", "resnet101", "backbone", "vit"),
)
"""`model.image.kind` -> network made of an `ImageEncoderConfig`: grey (images, 1, height, width) ->
(images, channels, rows, columns); `model.image.backbone` is its to read."""
METRICS: Registry[Callable[..., Any]] = Registry("metric")
"""Figure of a finding -> what measures it in each bootstrap sample, as those of `metrics`: scores,
truth and weights, or None -> samples."""
ROUTES: Registry[Callable[..., Any]] = Registry("route")
"""Name -> function that makes a `fastapi.APIRouter`, which the service answers by."""


def locate_plugins(names: object, folder: Path) -> object:
    """Write the files among the plugins that `folder` has with their whole paths."""
    if not isinstance(names, list | tuple):
        return names  # no list of names: the setting's own validator says so
    files = [(name, folder / str(name)) for name in names]
    return [str(file.resolve()) if file.is_file() else name for name, file in files]


def load_plugins(names: Sequence[str]) -> None:
    """Import plugins: files that end in .py, and modules by their dotted names.

    Raises:
        ConfigError: one is not there, or a file has the name of a module that is in use.
    """
    for name in names:
        if not name.endswith(".py"):
            _import_module(name)
        elif not (path := Path(name).resolve()).is_file():
            raise ConfigError(f"plugins names {name}, which is not a file; correct its path")
        elif _FILES.get(path.stem) != path:
            _import_file(path)


def _import_module(name: str) -> None:
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder, as `python -m` finds it
    try:
        file = importlib.import_module(name).__file__
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"plugins names {name}, and there is no module {error.name}; install it, or give the "
            "path of a file that ends in .py"
        ) from error
    _FILES.setdefault(name, Path(file or ""))


def _import_file(path: Path) -> None:
    if path.stem in sys.modules:
        raise ConfigError(f"plugins names {path.name}, and a module {path.stem} is in use; rename")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    _FILES[path.stem] = path


def plugin_files() -> Mapping[str, Path]:
    """Name the file of each plugin that this process has loaded."""
    return dict(_FILES)
