"""`python -m pipelines.build_manifest`, as scripts start it; the stage is in `data.py`."""

import sys

from .data import build_manifest
from .job import job_main

main = job_main("build_manifest", build_manifest)

if __name__ == "__main__":
    sys.exit(main())
