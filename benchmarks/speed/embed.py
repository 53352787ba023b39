"""`/embed` and `medclip embed` over the bare encoder: CPU time of an image.

    python -m benchmarks.embed [--quick]

A ResNet-18 at 480 px with random weights, PyTorch in float32, one core. The service gets 32 JPEG
files of 512 px in a request and answers in base64. The command embeds a folder of them; its start
is left out as the difference between two folders. The bare model takes ready tensors in batches of
eight, which cost it less an image than one at a time does, and decodes the same file without
isolation. All take turns, and a ratio is the median of those of the rounds: what else runs on the
machine slows the neighbors of a round alike. All times are means of as many images, for the same
reason: a best or a median of a few passes hides what a mean over a whole request contains.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.record import finish, judge
from benchmarks.speed.serve.processes import Bare, bare, cpu_s, one_core, publish_paper_size, served
from medclip_dcl.client import Client
from medclip_dcl.model_package import ARTIFACT
from testing.dicom import raster_bytes
from testing.processes import spent_by
from testing.service import Service
from testing.tiny_models import random_images

PER_REQUEST = 32
_BATCH = 8
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


def _forward_ms(model: Bare) -> float:
    return model.ask("forward", _BATCH, PER_REQUEST // _BATCH)["cpu_mean_ms"]


def _route_ms(client: Client, service: Service, files: Sequence[Path]) -> float:
    before = cpu_s(service.process)
    client.embed(files)
    return 1e3 * (cpu_s(service.process) - before) / len(files)


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Measure all in turn; medians of CPU milliseconds of an image, and of a round's ratios."""
    publish_paper_size(folder)
    few, many = (write_images(folder / f"of_{count}", count) for count in (FEW, MANY))
    files = sorted(few.iterdir())[:PER_REQUEST]
    found: dict[str, list[float]] = {}
    with (
        bare(folder / "model") as model,
        served(folder, batch=_BATCH, deadline_s=600, drain_s=600) as service,
    ):
        client = Client(service.url, timeout_s=600)
        for number in range(-1, rounds):
            first = [_forward_ms(model), _route_ms(client, service, files)]
            second = [_route_ms(client, service, files), _forward_ms(model)]
            forward, route = (first[0] + second[1]) / 2, (first[1] + second[0]) / 2
            decode = model.ask("decode", files[0], 32)["cpu_mean_ms"]
            if number < 0:  # it warms up
                continue
            spent = [cpu_s_of_command(each, ARTIFACT.at(folder)) for each in (few, many)]
            command = 1e3 * (spent[1] - spent[0]) / (MANY - FEW)
            own = {
                "route_over_bare": forward / route,
                "route_over_decode_and_forward": (decode + forward) / route,
                "command_over_decode_and_forward": (decode + forward) / command,
                "bare_cpu_ms": forward,
                "decode_cpu_ms": decode,
                "route_cpu_ms": route,
                "command_cpu_ms": command,
            }
            for name, value in own.items():
                found.setdefault(name, []).append(value)
            print({name: round(value, 3) for name, value in own.items()}, file=sys.stderr)
    return {name: median(values) for name, values in found.items()}


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
