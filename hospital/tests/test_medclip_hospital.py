"""The distribution as a whole: what it loads, and what it says where something is missing."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from hospital.tests.support.answers import radiograph
from tests.house import test_package as package
from tests.house.tree import copy_files

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "docker/hospital/gateway.lock"
SITE = Path(pytest.__file__).parents[1]
LOADED = 34
"""Modules of the project that the gateway may load."""
_CODE = """
import sys
started_with = set(sys.modules)  # what `.pth` files of the environment bring
import medclip_hospital.gateway.launcher, medclip_hospital.report
import medclip_hospital.structured_report
own = [name for name in sys.modules if name.split(".")[0].startswith("medclip")]
import medclip_hospital.header, medclip_dcl.data.decode_worker  # of the decode worker
libraries = {
    name.split(".")[0] for name, module in sys.modules.items()
    if name not in started_with and "site-packages" in (getattr(module, "__file__", None) or "")
}
print(len(own), *sorted(libraries))
"""


def test_the_gateway_loads_few_modules_and_no_package_that_its_image_lacks() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, check=True, cwd=ROOT
    )
    count, *libraries = run.stdout.split()
    assert 20 < int(count) <= LOADED
    locked = set(re.findall(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE))
    # pydicom and httpx import these where they are installed: sample files, progress bars
    optional = {"click", "requests", "tqdm", "urllib3", "charset-normalizer"}
    owners = packages_distributions()
    needed = {
        distribution.lower().replace("_", "-")
        for library in libraries
        for distribution in owners.get(library, ())
    }
    assert needed - optional - {"medclip-dcl", "medclip-dcl-hospital"} <= locked
    assert not {"torch", "transformers", "scikit-learn", "scipy", "pyarrow"} & needed


@pytest.mark.parametrize(
    ("command", "missing", "way"),
    [("gateway", "pynetdicom", r"\./hospital"), ("report", "medclip_dcl", r"--no-deps \.")],
)
def test_what_is_not_installed_is_named_with_the_way_to_it(command, missing, way):
    code = f"""
import sys; sys.modules[{missing!r}] = None
from medclip_hospital.__main__ import main
sys.exit(main([{command!r}, "--help"]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert re.search(
        rf"{missing}[.a-z]* is not installed; run pip install {way} in the checkout", line
    )


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--help"], 0), (["gatway"], 2)])
def test_commands_are_listed(words: list[str], code: int) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "medclip_hospital", *words], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == code
    assert "medclip-hospital gateway status" in (run.stderr if code else run.stdout)


_APART = """
import sys
from pathlib import Path
from importlib.util import find_spec
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
import medclip_hospital.structured_report
with Decoder(ImagesConfig(), 1) as decoder:
    parts = decoder.separate(Path(sys.argv[1]))
    print(b"Muster" in parts.header.data_set, b"Muster" in parts.stripped, find_spec("torch"))
"""


def test_its_wheel_and_the_library_s_run_without_torch(tmp_path: Path) -> None:
    """Beside them are the packages of the lock that the image is made of, and nothing else."""
    source = copy_files(tmp_path / "source", without=("tests", "benchmarks"))
    places = (source, source / "hospital")
    wheels = [package.made("build_wheel", place, tmp_path / "dist") for place in places]
    binaries = package.environment_with(tmp_path / "venv", [], *wheels)
    locked = re.findall(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE)
    package.borrow(locked, binaries)
    (tmp_path / "image.dcm").write_bytes(radiograph())
    words = [binaries / "python", "-W", "ignore", "-c", _APART, "image.dcm"]
    assert package.run(words, tmp_path).strip() == "True False None"
    assert "--out" in package.run([binaries / "medclip-hospital", "report", "--help"], tmp_path)
    listed = package.run([binaries / "medclip-hospital", "gateway", "--help"], tmp_path)
    assert "{forget,retry,run,status}" in listed
