"""Start the gateway: `python -m gateway --config configs/gateway.yaml`."""

import sys

from .launcher import main

if __name__ == "__main__":
    sys.exit(main())
