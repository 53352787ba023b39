"""Lets tests import an example as it imports its own files when it is run as a script."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "image_only"))
