"""The wheel and the sdist hold everything, and run from an empty folder without the checkout."""

import ast
import json
import os
import re
import shutil
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.budgets import QUESTIONS, measured
from tests.house.tree import ROOT, SHIPPED, copy_files, imported_by, modules, name_of, syntax
from tests.support.processes import ended, options
from tests.support.service import png
from tests.support.stub_service import FINDINGS, stub_service

_NAMES = {"PIL": "pillow", "sklearn": "scikit_learn", "yaml": "pyyaml"}


def declared_by(file: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]


def test_what_is_imported_is_declared() -> None:
    project = declared_by("pyproject.toml")
    lines = chain(project["dependencies"], *project["optional-dependencies"].values())
    declared = {Requirement(line).name.replace("-", "_") for line in lines}
    imported = {
        name.split(".")[0]
        for path in modules(*SHIPPED)
        for node in ast.walk(syntax(path))
        for name in imported_by(node)
    }
    foreign = {name for name in imported if name not in sys.stdlib_module_names}
    ours = {*SHIPPED, "medclip_dcl"}
    assert len(foreign) > 20
    unlisted = {_NAMES.get(name, name) for name in foreign - ours} - declared
    # an option of torch's own, and adapters of a tracker or a loader that a user brings
    assert unlisted <= {"torchvision", "tensorboardX"}


def made(what: str, source: Path, output: Path) -> Path:
    """Build an sdist or a wheel of a folder, which is how pip builds its wheel."""
    make = (
        "import sys; from setuptools import build_meta;"
        "print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
    )
    output.mkdir(exist_ok=True)
    printed = run([sys.executable, "-W", "ignore", "-c", make, what, output], source)
    return output / printed.split()[-1]


def environment_with(folder: Path, packages: Sequence[str], *wheels: Path) -> Path:
    """Make a fresh environment with wheels and with packages of the one that runs the tests."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    lines = "\n".join(packages)
    (site / "borrowed.pth").write_text(f"{lines}\n")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install"]
    run(
        [*pip, "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", *wheels], folder
    )
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist, and the wheel from it, as `python -m build` does."""
    folder = tmp_path_factory.mktemp("package")
    # A copy, so that the build leaves nothing in the checkout.
    source = copy_files(folder / "source", without=("tests", "benchmarks"))
    sdist = made("build_sdist", source, folder / "dist")
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    return made("build_wheel", next((folder / "unpacked").iterdir()), folder / "dist")


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = sysconfig.get_paths()["purelib"]
    return environment_with(tmp_path_factory.mktemp("environment") / "venv", [site], wheel)


def run(command: Sequence[object], folder: Path) -> str:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = ended(command, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_one_name_and_all_that_a_run_needs(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"medclip_dcl"}
    for folder, pattern in (("pipelines", "*.py"), ("api", "**/*"), ("configs", "**/*.yaml")):
        for path in (ROOT / folder).glob(pattern):
            if path.is_file() and path.suffix not in {".pyc", ".md"}:
                assert f"medclip_dcl/{name_of(path)}" in names
    assert "medclip_dcl/py.typed" in names


def test_the_demo_begins_in_an_empty_folder(binaries: Path, tmp_path: Path) -> None:
    jobs = '["generate_studies","build_manifest","prepare_images","write_report"]'
    few = ("generate.patients=4", "generate.size_px=64", "images.size_px=64")
    run([binaries / "medclip", "demo", *options([f"jobs={jobs}", *few])], tmp_path)
    assert (tmp_path / "runs/demo/prepared/artifact.json").is_file()
    assert (tmp_path / "runs/demo/report.html").is_file()
    assert "report" in run([binaries / "medclip", "show", "demo"], tmp_path)


def required(file: str) -> set[str]:
    """Distributions that pip installs for one of our own, where no extra is named."""
    listed, waiting = set[str](), [*map(Requirement, declared_by(file)["dependencies"])]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name not in listed and (not one.marker or one.marker.evaluate({"extra": ""})):
            listed.add(name)
            waiting += map(Requirement, metadata.requires(name) or ())
    return listed


def borrow(distributions: Iterable[str], binaries: Path) -> None:
    """Link distributions of this environment into another."""
    (site,) = (binaries.parent / "lib").glob("python3*/site-packages")
    for owner in map(metadata.distribution, distributions):
        for top in {file.parts[0] for file in owner.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(owner.locate_file(top))))


def test_the_light_install_runs_the_page_of_the_losses(wheel, tmp_path):
    binaries = environment_with(tmp_path / "venv", [], wheel)
    borrow(required("pyproject.toml"), binaries)
    page = (ROOT / "medclip_dcl/losses/README.md").read_text("utf-8")
    examples = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    (example,) = (code for code in examples if "s.requires_grad_()" in code)
    more = "import importlib.util as u, math; assert math.isfinite(loss) and s.grad.norm() > 0"
    more += "; print([n for n in ('transformers', 'pyarrow', 'pydantic') if u.find_spec(n)])"
    printed = run([binaries / "python", "-W", "ignore", "-c", f"{example}\n{more}"], tmp_path)
    assert printed.strip() == "[]"


def test_the_client_alone_asks_a_service_without_torch(tmp_path: Path) -> None:
    source = copy_files(tmp_path / "source", without=("tests", "benchmarks"))
    wheel = made("build_wheel", source / "client", tmp_path / "dist")
    binaries = environment_with(tmp_path / "venv", [], wheel)
    borrow(required("client/pyproject.toml"), binaries)
    heavy = "import importlib.util as u; print([n for n in ('torch', 'numpy') if u.find_spec(n)])"
    assert run([binaries / "python", "-c", heavy], tmp_path).strip() == "[]"

    (tmp_path / "key").write_text("k" * 40)
    (tmp_path / "key").chmod(0o400)
    (tmp_path / "image.png").write_bytes(png())
    with stub_service() as service:
        service.key = "k" * 40
        words = ["classify", "image.png", "--url", service.url, "--key-file", "key"]
        answer = json.loads(run([binaries / "medclip-ask", *words], tmp_path))
    assert [finding["name"] for finding in answer["findings"]] == [*FINDINGS]


def test_the_images_install_what_the_service_s_own_modules_import() -> None:
    files = measured(*QUESTIONS)["api.launcher"]["files"].values()
    of_service = [Path(file) for file in files if "pipelines" not in Path(file).parts]
    assert len(of_service) > 30
    distributions = metadata.packages_distributions()
    # What stands at the left is imported whatever is asked; the rest may be for other uses.
    imported = {
        name.partition(".")[0]
        for file in of_service
        for node in syntax(file).body
        for name in imported_by(node)
    }
    for device in ("cpu", "gpu"):
        lock = (ROOT / f"docker/{device}.lock").read_text()
        installed = set(map(canonicalize_name, re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)))
        for name in imported - {"api", "medclip_dcl"}:
            owners = {canonicalize_name(owner) for owner in distributions.get(name, [])}
            assert not owners or owners & installed, (device, name)
