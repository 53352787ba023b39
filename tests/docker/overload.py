"""Goodput through the proxy at four times what the service answers, among stalled senders.

The model is ResNet-18 at 480 px: with the demo's, which costs a few milliseconds, refusing is what
the processor would be busy with. Arrivals come at a fixed rate, whether or not earlier ones have
been answered.
"""

import io
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from tests.docker.clients import MEBIBYTE, ask, form, stalled

OVERLOAD = 4
CLIENTS = 16
SECONDS = 40


def measure(keyed: Mapping[str, str], stalled_senders: int) -> tuple[float, Counter[int], float]:
    """Ask at capacity, then at four times of it.

    Args:
        keyed: headers with the key.
        stalled_senders: uploads with the key that pause after one MiB, opened again when they are
            cut off.

    Returns:
        Answers a second at capacity; statuses under overload; goodput as a share of capacity.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (256, 256), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    headers, body = form(stream.getvalue())
    request = ("POST", "/classify", {**headers, **keyed}, body)
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(lambda _: ask(*request), range(2 * CLIENTS)))
        started = time.monotonic()
        answers = list(threads.map(lambda _: ask(*request).status, range(8 * CLIENTS)))
        capacity = answers.count(200) / (time.monotonic() - started)
    statuses: Counter[int] = Counter()
    count = round(OVERLOAD * capacity * SECONDS)
    with ThreadPoolExecutor(256) as threads:
        started = time.monotonic()
        under_way = []
        number = 0
        while number < count:
            with stalled(stalled_senders, keyed, MEBIBYTE):
                renewed = time.monotonic()
                while number < count and time.monotonic() < renewed + 8:
                    time.sleep(max(0.0, started + number / OVERLOAD / capacity - time.monotonic()))
                    under_way.append(threads.submit(ask, *request))
                    number += 1
        statuses.update(item.result().status for item in under_way)
        seconds = time.monotonic() - started
    return capacity, statuses, statuses[200] / seconds / capacity
