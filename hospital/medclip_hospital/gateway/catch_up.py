"""Images that were not sent are asked for: most archives forget one whose receiver was down."""

import datetime as dt
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from medclip_dcl.core.errors import ConfigError, ImageError, ServiceError
from medclip_dcl.data.limits import REASONS
from medclip_hospital.dicomweb import ArchivedImage, DicomWeb

from .listener import NO_RESOURCES, SUCCESS, Intake
from .monitoring import write_fault, write_line
from .settings import CatchUp

_MODALITIES = ("CR", "DX")
_LISTING_S, _MOST_LISTED = 3600, 100_000  # a large hospital's radiographs of some weeks


class CatchingUp:
    """A thread that looks at an archive from time to time."""

    def __init__(
        self,
        settings: CatchUp,
        ca: Path | None,
        intake: Intake,
        wake: Callable[[], None],
    ) -> None:
        """Set it up; ConfigError where the key or `ca` cannot be read."""
        self._settings, self._intake, self._wake = settings, intake, wake
        self._open = partial(settings.open, ca, listing_s=_LISTING_S, most_listed=_MOST_LISTED)
        self._fetched: set[str] = set()
        self._stopped = threading.Event()
        self._open()  # a key that cannot be read ends the start
        self._thread = threading.Thread(target=self._run, name="catch-up", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the image that is being fetched."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                code = self._look()
            except ConfigError:
                code = "key_file"
            except ServiceError as error:
                code = error.code
            except Exception as error:  # noqa: BLE001 (what nothing foresaw ends no catching up)
                write_fault("catch_up", error)
                code = "fault"
            monitor = self._intake.monitor
            failed = 0 if code == "ok" else monitor.catch_up_failed_in_a_row + 1
            monitor.catch_up_failed_in_a_row = failed
            write_line("catch_up", code=code)
            self._stopped.wait(self._settings.every_s)

    def _look(self) -> str:
        """Fetch what is missing; `ok`, or what went wrong with the last image that did not come."""
        today = dt.datetime.now().astimezone().date()
        first = today - dt.timedelta(days=self._settings.days)
        code = "ok"
        with self._open() as archive:
            listed = archive.images(_MODALITIES, f"{first:%Y%m%d}-{today:%Y%m%d}")
            if archive.repeated_rows:  # it ignores `offset`, and may have more
                write_line("catch_up_may_lack", rows=archive.repeated_rows)
            self._fetched &= {image.instance for image in listed}
            for image in listed:
                if self._stopped.is_set():
                    break
                # One that could not be read may have been damaged on its way: it is asked for.
                is_known = self._intake.journal.knows_uid(image.instance, REASONS)
                if is_known or image.instance in self._fetched:
                    continue
                try:
                    self._fetch(archive, image)
                except ImageError as error:
                    if error.code == "too_many_bytes":
                        self._fetched.add(image.instance)
                    elif error.code != "missing":  # gone meanwhile
                        code = error.code
                except ServiceError as error:
                    if error.code in {"unreachable", "certificate"}:
                        raise
                    code = error.code
        return code

    def _fetch(self, archive: DicomWeb, image: ArchivedImage) -> None:
        part = self._intake.part()
        part.write(archive.fetch(image))
        status = self._intake.accept(part, image.instance, "catch-up")
        if status != NO_RESOURCES or part.failure == "too_large":
            self._fetched.add(image.instance)  # the same image would come again
        if status == SUCCESS:
            self._wake()
