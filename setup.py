"""Where the wheel has what the checkout has: site-packages gets no `api`.

The folders of `INSIDE` are packages of `medclip_dcl` in the wheel. Modules there import each other
relatively, so both places work. Everything else is in pyproject.toml.
"""

from setuptools import find_namespace_packages, find_packages, setup

INSIDE = ("api", "configs", "pipelines")

found = find_namespace_packages(include=[f"{name}*" for name in INSIDE])
setup(
    packages=[
        *find_packages(include=["medclip_dcl*"]),
        *(f"medclip_dcl.{name}" for name in found if name.split(".")[0] in INSIDE),
    ],
    package_dir={f"medclip_dcl.{name}": name for name in INSIDE},
)
