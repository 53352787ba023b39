"""Large bodies arrive in memory that decode workers read, and others use after them."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from api import model_manager
from api.bodies import Body, BodyMemory
from api.errors import ApiError
from api.http_protocol import LARGE, READ_BODY
from api.logging import Metrics, RequestState
from api.settings import ServeSettings
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.ipc import KEPT_BYTES, SharedBytes
from medclip_dcl.data.limits import ImagesConfig
from testing.dicom import dicom_bytes, ramp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs files in memory")

MOST = 2 * KEPT_BYTES
KIND = b"multipart/form-data; boundary=xyz"
HEAD = b'--xyz\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
END = b"\r\n--xyz--\r\n"


def gathered(
    body: bytes, memory: BodyMemory, *, in_pieces: bool = False
) -> tuple[bytes, RequestState, Body]:
    """Send a body: what goes to the form's parser, the request's state, and the account."""
    pieces = [{"body": body[:9], "more_body": True}, {"more_body": True}, {"body": body[9:]}]

    async def read(into: memoryview, hold: Callable[[int], None]) -> bool:
        hold(len(body))
        into[:] = body
        return True

    state = RequestState("id")
    scope: dict[str, Any] = {
        "headers": [(b"content-length", str(len(body)).encode()), (b"content-type", KIND)],
        "extensions": {} if in_pieces else {READ_BODY: read},
        "state": {"request": state},
    }
    counted = Body(memory, 30)

    async def receive() -> Any:
        assert in_pieces
        return {"type": "http.request"} | pieces.pop(0)

    message = asyncio.run(counted.gather(scope, receive))
    assert (message["type"], message["more_body"]) == ("http.request", False)
    return message["body"], state, counted


def test_workers_read_an_image_where_it_arrived() -> None:
    memory = BodyMemory(MOST, MOST)
    with Decoder(ImagesConfig(), 1) as decoder:
        for seed in (0, 1):  # the second in the memory of the first, which was longer
            image = dicom_bytes(ramp(600 - seed, 400))
            form, state, counted = gathered(HEAD + image + END, memory)
            assert form == HEAD + END
            (file,) = state.files
            assert isinstance(file, SharedBytes)
            assert bytes(file.view) == image
            assert np.array_equal(decoder.open(file).pixels, decoder.open(image).pixels)
            assert counted.size == len(HEAD + image + END)
            counted.release()
            state.files = ()
            del file


def test_a_body_in_pieces_is_set_aside_and_counted_alike() -> None:
    image, account = bytes(range(256)) * (LARGE // 256), BodyMemory(2 * LARGE, 2 * LARGE)
    small = image[:-1]
    for sent, left, aside in ((image, b"", image), (small, small, b"")):
        body = HEAD + sent + END
        form, state, counted = gathered(body, account, in_pieces=True)
        assert (form, b"".join(state.files)) == (HEAD + left + END, aside)
        assert counted.size == len(body)
        counted.release()
    assert account.hold(2 * LARGE)


def test_memory_is_used_again_when_nobody_refers_to_it() -> None:
    memory = BodyMemory(MOST, MOST)
    first, second = memory.lend(LARGE), memory.lend(LARGE)
    assert first is not None
    assert second is not None
    assert first.handle != second.handle
    image, handle = SharedBytes(first, 0, 9), first.handle
    del first
    third = memory.lend(LARGE)
    assert third is not None
    assert third.handle not in (handle, second.handle)  # somebody may still read the first
    del image
    again = memory.lend(LARGE)
    assert again is not None
    assert again.handle == handle


def test_memory_goes_back_to_the_system_when_idle_and_where_a_body_was_very_large() -> None:
    memory = BodyMemory(MOST, MOST)
    lent = [memory.lend(size) for size in (*[LARGE] * 8, KEPT_BYTES, KEPT_BYTES + 1)]
    handles = [item.handle for item in lent if item is not None]
    assert len(set(handles)) == 10
    lent.reverse()
    while lent:  # the very large one goes first
        lent.pop(0)
    assert [is_open(handle) for handle in handles] == [False, *[True] * 8, False]  # eight are kept
    memory.give_back()
    assert not any(map(is_open, handles))


def test_idle_memory_goes_back_to_the_system_while_images_still_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_manager, "_IDLE_S", 0.01)

    async def go_on() -> list[bool]:
        serving = model_manager.ModelManager(ServeSettings(model="none"), Metrics())
        serving.current.decode_slots.used_at = time.monotonic() + 60
        busy, idle = serving.body_memory.lend(9), serving.body_memory.lend(9)
        assert busy is not None
        assert idle is not None
        handles = [busy.handle, idle.handle]
        del idle
        duty = asyncio.create_task(serving.give_memory_back())
        await asyncio.sleep(0.2)
        duty.cancel()
        serving.close()
        return [is_open(handle) for handle in handles]

    assert asyncio.run(go_on()) == [True, False]


def is_open(handle: int) -> bool:
    try:
        return bool(os.fstat(handle))
    except OSError:
        return False


def test_who_has_the_descriptor_can_read_and_nothing_else() -> None:
    lent = BodyMemory(MOST, MOST).lend(LARGE)
    assert lent is not None
    lent.map[:3] = b"abc"
    assert os.pread(lent.handle, 3, 0) == b"abc"
    with pytest.raises(PermissionError):
        os.pwrite(lent.handle, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(lent.handle, 1)


def test_bodies_of_which_too_many_are_held_arrive_in_pieces() -> None:
    memory = BodyMemory(MOST, MOST)
    held = [memory.lend(LARGE) for _ in range(32)]
    assert None not in held
    assert memory.lend(LARGE) is None


def test_room_is_for_all_bodies_together_and_given_back() -> None:
    memory = BodyMemory(3 * LARGE, MOST)
    body = HEAD + bytes(LARGE) + END
    counts = [gathered(body, memory)[2] for _ in range(2)]
    with pytest.raises(ApiError) as refused:
        gathered(body, memory)
    assert refused.value.code == "overloaded"
    for count in counts:
        count.release()
    gathered(body, memory)
    exact = BodyMemory(len(body), len(body))
    gathered(body, exact)[2].release()
    assert not exact.hold(len(body) + 1)
    assert exact.hold(len(body))
    with pytest.raises(ApiError) as refused:
        gathered(body, BodyMemory(MOST, LARGE))
    assert refused.value.code == "body_too_large"
