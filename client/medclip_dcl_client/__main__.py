"""`python -m medclip_dcl_client`: ask the service one question."""

import sys

from .client import main

sys.exit(main(prog="medclip-ask"))
