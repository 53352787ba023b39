"""Clients that send a whole request and are gone, from a process that does nothing else.

    python -m benchmarks.speed.serve.disconnects HOST PORT CLIENTS BETWEEN_S < REQUEST

In a process with other threads a client could stay for milliseconds after its last byte.
"""

import socket
import sys
import time


def main() -> int:
    """Send and leave, again and again."""
    host, port, clients, between_s = sys.argv[1:]
    request = sys.stdin.buffer.read()
    for _ in range(int(clients)):
        with socket.create_connection((host, int(port))) as gone:
            gone.sendall(request)
        time.sleep(float(between_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
