"""Start the service: `python -m api --config configs/serve.yaml`."""

import sys

from .memory import keep_memory

if __name__ == "__main__":
    keep_memory()  # before a library starts its first thread, which would get a heap of its own
    from .launcher import main

    sys.exit(main())
