"""`/embed` and `medclip embed` over the bare encoder: CPU time of an image.

    python -m benchmarks.embed [--quick]

A ResNet-18 at 480 px with random weights, PyTorch in float32, one core. The service gets 32 JPEG
files of 512 px in a request and answers in base64. The command embeds a folder of them; its start
is left out as the difference between two folders. The bare model is the better of batches of one
and of eight over ready tensors, and decodes the same file without isolation. All take turns.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.record import finish, judge
from benchmarks.speed.serve.processes import bare, cpu_s, one_core, publish_paper_size, served
from benchmarks.speed.serve.ratios import best_forward
from medclip_dcl.client import Client
from medclip_dcl.model_package import ARTIFACT
from testing.dicom import raster_bytes
from testing.processes import spent_by
from testing.tiny_models import random_images

PER_REQUEST = 32
FEW, MANY = 32, 160
"""Images in the two folders of the command."""
BARS = {"route_over_bare": ">= 0.95", "command_over_decode_and_forward": ">= 0.97"}


def write_images(folder: Path, count: int) -> Path:
    """Write JPEG files of 512 px."""
    folder.mkdir()
    for number, pixels in enumerate(random_images(count, size_px=512, seed=1)):
        (folder / f"{number:04d}.jpg").write_bytes(raster_bytes(pixels, "jpeg", quality=90))
    return folder


def cpu_s_of_command(folder: Path, model: Path) -> float:
    """Embed a folder in a process of its own, on one core; its CPU seconds."""
    out = folder.with_suffix(".parquet")
    words = ["embed", str(folder), "--model", str(model), "--out", str(out), "--replace"]
    words += ["--engine", "torch"]
    with one_core():
        spent = spent_by([sys.executable, "-m", "pipelines", *words], stdout=sys.stderr)
    if spent.code:
        raise RuntimeError(f"medclip embed ended with exit code {spent.code}")
    out.unlink()
    return spent.cpu_s


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Measure all in turn; medians of CPU milliseconds of an image, and their ratios."""
    publish_paper_size(folder)
    few, many = (write_images(folder / f"of_{count}", count) for count in (FEW, MANY))
    files = sorted(few.iterdir())[:PER_REQUEST]
    times: dict[str, list[float]] = {}
    with bare(folder / "model") as model, served(folder, batch=8) as service:
        client = Client(service.url)
        for number in range(-1, rounds):
            own = {"bare": best_forward(model)["cpu_ms"]}
            own["decode"] = model.ask("decode", files[0], 9)["cpu_ms"]
            before = cpu_s(service.process)
            for _ in range(2):
                client.embed(files)
            own["route"] = 1e3 * (cpu_s(service.process) - before) / (2 * PER_REQUEST)
            spent = [cpu_s_of_command(each, ARTIFACT.at(folder)) for each in (few, many)]
            own["command"] = 1e3 * (spent[1] - spent[0]) / (MANY - FEW)
            if number >= 0:  # the first warms up
                for name, value in own.items():
                    times.setdefault(name, []).append(value)
    cpu = {name: median(values) for name, values in times.items()}
    apart = cpu["decode"] + cpu["bare"]
    return {
        "route_over_bare": cpu["bare"] / cpu["route"],
        "route_over_decode_and_forward": apart / cpu["route"],
        "command_over_decode_and_forward": apart / cpu["command"],
        **{f"{name}_cpu_ms": value for name, value in cpu.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embed")
    parser.add_argument("--quick", action="store_true", help="one round")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), 1 if arguments.quick else 5)
    return finish("embed", figures, judge(figures, BARS))


if __name__ == "__main__":
    sys.exit(main())
