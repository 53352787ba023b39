"""Images that were not sent are asked for: most archives forget one whose receiver was down."""

import datetime as dt
import sqlite3
import threading
from pathlib import Path

from medclip_dcl.data.sources.dicomweb import DicomWeb
from medclip_dcl.errors import ConfigError, ImageError, ServiceError

from .journal import Journal
from .listener import SUCCESS, Intake
from .monitoring import log, log_fault
from .settings import CatchUp
from .stages import Workers

_MODALITIES = ("CR", "DX")


class CatchingUp:
    """A thread that looks at an archive from time to time."""

    def __init__(
        self, settings: CatchUp, journal: Journal, intake: Intake, workers: Workers
    ) -> None:
        """Set it up; ConfigError where the key cannot be read."""
        self._settings, self._journal = settings, journal
        self._intake, self._workers = intake, workers
        self._too_large: set[str] = set()
        self._stopped = threading.Event()
        with self._archive():
            pass  # a key that cannot be read ends the start
        self._thread = threading.Thread(target=self._run, name="catch-up", daemon=True)
        self._thread.start()

    def _archive(self) -> DicomWeb:
        """Connect for one look: the key is the one that stands in its file now."""
        key_file = Path(self._settings.key_file) if self._settings.key_file else None
        return DicomWeb(self._settings.url, key_file)

    def stop(self) -> None:
        """End after the image that is being fetched."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._archive() as archive:
                    self._look(archive)
            except ConfigError:
                log("catch_up", code="key_file")
            except ServiceError as error:
                log("catch_up", code=error.code)
            except (OSError, sqlite3.Error) as error:
                log_fault("disk", error)
            self._stopped.wait(self._settings.every_s)

    def _look(self, archive: DicomWeb) -> None:
        today = dt.datetime.now().astimezone().date()
        first = today - dt.timedelta(days=self._settings.days)
        fetched = 0
        for image in archive.images(_MODALITIES, f"{first:%Y%m%d}-{today:%Y%m%d}"):
            if self._stopped.is_set():
                return
            if image.instance in self._too_large or self._journal.knows_uid(image.instance):
                continue
            try:
                data = archive.fetch(image)
            except ImageError:
                continue  # gone meanwhile
            part = self._intake.part()
            part.write(data)
            if part.failure == "too_large":
                self._too_large.add(image.instance)
            if self._intake.accept(part, image.instance, "catch-up") == SUCCESS:
                fetched += 1
                self._workers.wake()
        log("catch_up", code="ok", fetched=fetched)
