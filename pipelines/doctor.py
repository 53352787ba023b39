"""Check whether this machine can run a config: torch, decoders, disk, processes.

Each line is one question with its answer: `ok`, `note` (something to know) or `fault`
(something that will break or mislead a run), with the remedy next to it. Exit code 0
without faults, 2 with one. `--gpu` also works inside the service's container.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from medclip_dcl.distributed import available_cores
from medclip_dcl.errors import MedclipError
from medclip_dcl.settings import resolve_path

from .cli import ConfigFileIfAny, Overrides, config_of, tool_main
from .config import Config

_LEAST_FREE_GIB = 5
_PCI = Path("/sys/bus/pci/devices")
_DECODERS = ("jpeg8_decode", "ljpeg_decode", "jpegls_decode", "jpeg2k_decode", "dicomrle_decode")


class Check(NamedTuple):
    """The answer to one question."""

    question: str
    state: Literal["ok", "note", "fault"]
    words: str


def check_environment(config: Config | None = None) -> Iterator[Check]:
    """Put every question to this machine; a config's folder and processes as well."""
    yield from _torch()
    yield _torchvision()
    yield _decoders()
    yield _gate()
    yield _cores()
    yield _disk(Path("." if config is None else resolve_path(config.work, config.work)))
    if config is not None:
        yield _processes(config)


def check_gpu() -> Iterator[Check]:
    """Check whether torch reaches a GPU and computes on it, from the driver up to a fault."""
    import torch

    built = torch.version.cuda
    if built is None:
        yield Check(
            "torch", "fault", f"{torch.__version__} is a CPU build; install the CUDA build, or "
            "start the image whose tag ends in -gpu"
        )  # fmt: skip
        return
    yield Check("torch", "ok", f"{torch.__version__}, built for CUDA {built}")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        offered: int = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
    except RuntimeError as error:  # torch names what it met
        reason = str(error).splitlines()[0]
        yield Check(
            "driver", "fault", f"{reason} Where nvidia-smi works on the host and not here, the "
            "container was started without a GPU, or the container toolkit is missing; where it "
            "does not work there, install the driver; see that CUDA_VISIBLE_DEVICES hides no GPU"
        )  # fmt: skip
        return
    yield Check("driver", "ok", f"up to CUDA {offered // 1000}.{offered % 1000 // 10}")
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        half = "bf16" if torch.cuda.is_bf16_supported() else "fp16 alone"
        words = f"{name}, {half}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        yield Check(f"cuda:{number}", "ok", words)
        ones = torch.ones(256, 256, device=f"cuda:{number}")
        computes = bool((ones @ ones == 256).all())
        kernels = "a matrix product is right" if computes else "a matrix product is wrong"
        yield Check(f"cuda:{number}", "ok" if computes else "fault", kernels)


def command(
    config: ConfigFileIfAny = None,
    overrides: Overrides = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Ask about the GPU alone.")] = False,
) -> int:
    """Print every finding; 2 where one is a fault."""
    loaded = config_of(config, overrides) if config else None
    return print_findings(check_gpu() if gpu else check_environment(loaded))


def print_findings(findings: Iterable[Check]) -> int:
    """Print a line a finding, as each is made; 2 where one is a fault, else 0."""
    code = 0
    for finding in findings:
        print(f"{finding.state:6}{finding.question:14}{finding.words}", flush=True)
        code = 2 if finding.state == "fault" else code
    return code


def _torch() -> Iterator[Check]:
    import torch

    if torch.version.cuda is None:
        words = f"{torch.__version__}, no CUDA: everything runs on the CPU"
    elif not (_has_nvidia_device() or torch.cuda.is_available()):
        words = f"{torch.__version__}, no NVIDIA GPU here: everything runs on the CPU"
    else:
        yield from check_gpu()
        return
    yield Check("torch", "note", words)


def _has_nvidia_device() -> bool:
    """Whether the bus names a device of NVIDIA's, with a driver or without."""
    vendors = (path.read_text("ascii").strip() for path in _PCI.glob("*/vendor"))
    return "0x10de" in vendors


def _torchvision() -> Check:
    try:
        version = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return Check("torchvision", "ok", "absent, as it should be")
    try:
        import torchvision  # noqa: F401
    except Exception as error:  # noqa: BLE001 (whatever it is, transformers meets it as well)
        return Check(
            "torchvision", "fault", f"{version} does not import ({type(error).__name__}) and "
            "breaks transformers with it; pip uninstall torchvision"
        )  # fmt: skip
    return Check("torchvision", "note", f"{version}; nothing here uses it")


def _decoders() -> Check:
    import imagecodecs

    missing = [name for name in _DECODERS if not hasattr(imagecodecs, name)]
    if missing:
        words = f"imagecodecs lacks {', '.join(missing)}; install it from requirements.lock"
        return Check("decoders", "fault", words)
    return Check("decoders", "ok", "RLE, JPEG, lossless JPEG, JPEG-LS, JPEG 2000")


def _gate() -> Check:
    from PIL import Image

    from medclip_dcl.data.images import open_image

    drawn = BytesIO()
    Image.linear_gradient("L").save(drawn, "PNG")
    try:
        image = open_image(drawn.getvalue())
    except (MedclipError, OSError) as error:
        words = f"no decode worker starts ({type(error).__name__}); are processes forbidden here?"
        return Check("image gate", "fault", words)
    rows, columns = image.pixels.shape
    return Check("image gate", "ok", f"a worker process decoded {rows} x {columns} pixels")


def _cores() -> Check:
    cores, asked = available_cores(), os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > cores:
        words = f"OMP_NUM_THREADS is {asked} on {cores} cores: threads will wait for each other"
        return Check("cores", "fault", words)
    return Check("cores", "ok", f"{cores} for this process")


def nearest_folder(path: Path) -> Path:
    """Find a path's deepest folder that exists, whose disk a run will fill."""
    return next(item for item in (path.absolute(), *path.absolute().parents) if item.exists())


def _disk(work: Path) -> Check:
    folder = nearest_folder(work)
    if not os.access(folder, os.W_OK):
        return Check("disk", "fault", "the config's folder cannot be written; change `work`")
    free_gib = shutil.disk_usage(folder).free / 2**30
    state: Literal["ok", "note"] = "ok" if free_gib >= _LEAST_FREE_GIB else "note"
    return Check("disk", state, f"{free_gib:.0f} GiB free where the config writes")


def _processes(config: Config) -> Check:
    expected, batch = config.train.processes, config.train.global_batch
    words = f"train.processes {expected}, {batch // expected} pairs each of a batch of {batch}"
    started = int(os.environ.get("WORLD_SIZE", expected))
    if started != expected:
        return Check("processes", "fault", f"{words}; the launcher started {started}")
    return Check("processes", "ok", words)


main = tool_main("doctor", command)

if __name__ == "__main__":
    sys.exit(main())
