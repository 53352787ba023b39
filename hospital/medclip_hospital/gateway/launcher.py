"""The gateway's commands: run it, see what it does, take up or forget images."""

import argparse
import json
import os
import re
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from medclip_dcl.client import Client
from medclip_dcl.core.errors import ArtifactUnwritable, ConfigError, MedclipError
from medclip_dcl.data.dicom.metadata import read_instance_uid

from .catch_up import CatchingUp
from .destinations import Destination, open_destination
from .journal import Journal
from .listener import Intake, Listener
from .monitoring import Monitor, silence_libraries, write_fault, write_line
from .settings import GIBIBYTE, GatewaySettings, read_gateway_settings
from .spool import Spool, prepare_folder, remove_image
from .stages import Workers

_JOURNAL = "journal.sqlite3"
_TIDY_EVERY_S = 60.0
_MOST_ANSWER_BYTES = 4 << 20  # an answer has some kB for each finding
_DIGEST = re.compile(r"[0-9a-f]{4,64}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; exit code 0, 2 where the configuration is at fault, 4 where the spool is."""
    parser = argparse.ArgumentParser(prog="medclip-hospital gateway", description=__doc__)
    parser.add_argument("command", nargs="?", default="run", choices=sorted(_COMMANDS))
    parser.add_argument("digest", nargs="?", default="", help="first digits of an image's SHA-256")
    parser.add_argument("--config", type=Path, required=True, help="settings, a YAML file")
    arguments = parser.parse_args(argv)
    try:
        if arguments.digest and not _DIGEST.fullmatch(arguments.digest):
            raise ConfigError("a digest is 4 to 64 hexadecimal digits; `status` shows them")
        settings = read_gateway_settings(arguments.config, os.environ)
        _COMMANDS[arguments.command](settings, arguments.digest)
    except MedclipError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return error.exit_code
    except (OSError, sqlite3.Error):
        print("gateway: the spool cannot be used; is its disk full, or locked?", file=sys.stderr)
        return ArtifactUnwritable.exit_code
    return 0


@dataclass
class Gateway:
    """A gateway that runs."""

    settings: GatewaySettings
    spool: Spool
    journal: Journal
    port: int  # port of the listener
    metrics_port: int

    def tidy(self) -> None:
        """Remove what is too old: files of the spool, then rows of the journal."""
        try:
            gone = self.journal.older(3600 * self.settings.keep_hours, in_spool=True)
            old = self.journal.older(86400 * self.settings.remember_days, in_spool=False)
            self.spool.remove([*gone, *old])  # a file without a row would be taken up at a start
            self.journal.out_of_spool(gone)
            for digest in old:
                self.journal.forget(digest)
        except (OSError, sqlite3.Error) as error:
            write_fault("disk", error)


@contextmanager
def started(settings: GatewaySettings, destination: Destination | None = None) -> Iterator[Gateway]:
    """Run a gateway in threads; `destination`: another than that of the settings.

    ConfigError where its spool, files or ports cannot be used.
    """
    with ExitStack() as stack:
        spool = Spool(settings.spool, int(settings.spool_gb * GIBIBYTE))
        stack.callback(spool.close)
        journal = Journal(settings.spool / _JOURNAL)
        stack.callback(journal.close)
        for digest in spool.digests():  # a kill between file and journal, or a journal that is new
            if journal.state(digest) is None:
                journal.add(digest, read_instance_uid(spool.image(digest)), "spool")
        monitor = Monitor(journal, spool)
        key = Path(settings.service_key_file) if settings.service_key_file else ""
        client = stack.enter_context(
            Client(settings.service, key, ca=settings.ca, most_bytes=_MOST_ANSWER_BYTES)
        )
        to = destination or open_destination(settings.destination, settings.ae_title, settings.ca)
        workers = Workers(settings, spool, journal, monitor, client, to)
        metrics = monitor.serve(settings.metrics_port)
        stack.callback(metrics.server_close)
        stack.callback(metrics.shutdown)
        intake = Intake(settings, spool, journal, monitor)
        listener = Listener(settings, intake, workers.wake)
        workers.start()
        stack.callback(workers.stop)
        stack.callback(listener.close)
        if settings.catch_up:
            catching_up = CatchingUp(settings.catch_up, settings.ca, intake, workers.wake)
            stack.callback(catching_up.stop)
        yield Gateway(settings, spool, journal, listener.port, metrics.server_port)


def _run(settings: GatewaySettings, _: str) -> None:
    silence_libraries()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with started(settings) as gateway:
        line = {"gateway": "listening", "host": settings.host, "port": gateway.port}
        print(json.dumps(line | {"metrics_port": gateway.metrics_port}), flush=True)
        while not stopped.wait(_TIDY_EVERY_S):
            gateway.tidy()
        write_line("stopping")


def _open(settings: GatewaySettings) -> Journal:
    prepare_folder(settings.spool)
    return Journal(settings.spool / _JOURNAL)


def _status(settings: GatewaySettings, _: str) -> None:
    journal = _open(settings)
    facts = {"oldest_waiting_s": round(journal.oldest_waiting_s()), "refusals": journal.refusals()}
    print(json.dumps(journal.counts() | facts))
    for digest, state, code, attempts in journal.troubles():
        print(f"{digest[:12]} {state} {code} after {attempts} attempts")


def _retry(settings: GatewaySettings, digest: str) -> None:
    print(f"{_open(settings).retry(digest)} images are taken up")


def _forget(settings: GatewaySettings, digest: str) -> None:
    if not digest:
        raise ConfigError("forget needs the first digits of an image's digest; see `status`")
    digests = _open(settings).forget(digest)
    for name in digests:
        remove_image(settings.spool, name)
    print(f"{len(digests)} images are forgotten")


_COMMANDS = {"run": _run, "status": _status, "retry": _retry, "forget": _forget}
