"""The journal: which image is where on its way, and what was answered; SQLite, durable at commit.

    received -> answered -> built -> done      or refused (not for us), or stuck (failing too long)

An image that is out of range is refused once the PACS has the objects that say so.

A step is one transaction that comes after its files. A kill therefore repeats at most one step,
and the step has the same result. `synchronous=FULL` makes a commit durable before it returns.
"""

import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_dcl.core.errors import ArtifactCorrupt

WAITING = ("received", "answered", "built")
"""States in which something is to be done."""
STATES = (*WAITING, "done", "refused", "stuck")
"""All states."""

_SCHEMA = """
create table if not exists images (
    digest text primary key, image_uid text not null, caller text not null,
    received_at real not null, state text not null, changed_at real not null,
    code text not null default '', resume text not null default '',
    attempts integer not null default 0, not_before real not null default 0,
    failing_since real, answer text, answered_at real, in_spool integer not null default 1
) without rowid;
create index if not exists by_state on images (state, not_before);
create index if not exists by_uid on images (image_uid);
create table if not exists objects (
    uid text primary key, digest text not null, is_sent integer not null default 0
) without rowid;
create index if not exists by_digest on objects (digest);
"""


# What SQLite says of a file's content; what it says of a disk is something else.
_DAMAGE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _damaged(file: Path) -> ArtifactCorrupt:
    return ArtifactCorrupt(
        f"journal {file} is damaged; stop the gateway and delete {file}*: nothing is lost, since "
        "images are taken up from the spool, and answers keep their UIDs"
    )


@dataclass(frozen=True)
class Entry:
    """An image that waits."""

    digest: str
    state: str
    attempts: int
    failing_since: float | None
    answer: str | None  # JSON of the service's answer
    answered_at: float | None


_COLUMNS = ", ".join(Entry.__annotations__)
_IS_WAITING = f"state in {WAITING}"  # as SQL writes it, too


class Journal:
    """One file; threads share a connection, and commands of another process open their own."""

    def __init__(self, file: Path) -> None:
        """Open the file, or begin it; ArtifactCorrupt where it is damaged."""
        self._lock = threading.Lock()
        self._db = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=full")
            self._db.executescript(_SCHEMA)
            if self._rows("pragma quick_check(1)") != [("ok",)]:
                raise _damaged(file)
        except (sqlite3.DatabaseError, ArtifactCorrupt) as error:
            self._db.close()
            if isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF in _DAMAGE:
                raise _damaged(file) from error
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._db:  # commits, or rolls back
            self._db.execute("begin immediate")
            yield self._db

    def _rows(self, question: str, values: Sequence[object] = ()) -> list[Any]:
        with self._lock, closing(self._db.execute(question, values)) as cursor:
            return cursor.fetchall()

    def add(self, digest: str, image_uid: str, caller: str) -> None:
        """Note an image that is durable in the spool; one that is known stays as it is."""
        now = time.time()
        with self._transaction() as db:
            db.execute(
                "insert into images (digest, image_uid, caller, received_at, state, changed_at)"
                " values (?, ?, ?, ?, 'received', ?) on conflict do nothing",
                (digest, image_uid, caller, now, now),
            )

    def state(self, digest: str) -> str | None:
        """Return the state of an image; None: it is not known."""
        entry = self.entry(digest)
        return None if entry is None else entry.state

    def knows_uid(self, image_uid: str, except_refused: Collection[str] = ()) -> bool:
        """Whether an image of this SOP instance UID was received.

        One that was refused by a code of `except_refused` does not count.
        """
        rows = self._rows("select state, code from images where image_uid = ?", (image_uid,))
        return any(state != "refused" or code not in except_refused for state, code in rows)

    def waiting(self, now: float, most: int) -> list[Entry]:
        """Return images whose time has come, those that wait longest first."""
        rows = self._rows(
            f"select {_COLUMNS} from images where {_IS_WAITING} and not_before <= ?"  # noqa: S608
            " order by not_before, received_at limit ?",
            (now, most),
        )
        return [Entry(*row) for row in rows]

    def next_wait_s(self, now: float) -> float | None:
        """Return the seconds until the next image's time comes; None: none has one to come."""
        rows = self._rows(
            f"select min(not_before) from images where {_IS_WAITING} and not_before > ?",  # noqa: S608
            (now,),
        )
        return None if rows[0][0] is None else rows[0][0] - now

    def entry(self, digest: str) -> Entry | None:
        """Return an image; None: it is not known."""
        rows = self._rows(f"select {_COLUMNS} from images where digest = ?", (digest,))  # noqa: S608
        return Entry(*rows[0]) if rows else None

    def answered(self, digest: str, answer: str, answered_at: float) -> None:
        """Keep an answer and its time: what is built of it depends on nothing else."""
        with self._transaction() as db:
            db.execute(
                "update images set state = 'answered', answer = ?, answered_at = ?, attempts = 0,"
                " failing_since = null, changed_at = ? where digest = ? and state = 'received'",
                (answer, answered_at, time.time(), digest),
            )

    def built(self, digest: str, uids: Iterable[str]) -> None:
        """Note objects that are durable in the spool."""
        with self._transaction() as db:
            db.executemany(
                "insert into objects (uid, digest) values (?, ?) on conflict do nothing",
                [(uid, digest) for uid in uids],
            )
            self._move(db, digest, "answered", "built", "")

    def unsent(self, digest: str) -> list[str]:
        """Return the UIDs of an image's objects that the destination has not acknowledged."""
        rows = self._rows("select uid from objects where digest = ? and not is_sent", (digest,))
        return sorted(uid for (uid,) in rows)

    def sent(self, digest: str, uids: Iterable[str], refused: str = "") -> None:
        """Note objects that the destination acknowledged; with the last one the image is done.

        `refused`: code by which it is refused instead, where the objects say that it was.
        """
        with self._transaction() as db:
            db.executemany("update objects set is_sent = 1 where uid = ?", [(uid,) for uid in uids])
            left = db.execute(
                "select count(*) from objects where digest = ? and not is_sent", (digest,)
            ).fetchone()[0]
            if not left:
                self._move(db, digest, "built", "refused" if refused else "done", refused)

    def refused(self, digest: str, code: str) -> None:
        """Note that an image is not for us, or cannot be read."""
        with self._transaction() as db:
            self._move(db, digest, None, "refused", code)

    def failed(self, entry: Entry, code: str, not_before: float, give_up_s: float) -> bool:
        """Note a failure of one image alone; return whether it is now stuck."""
        now = time.time()
        since = entry.failing_since or now
        is_stuck = now - since >= give_up_s
        with self._transaction() as db:
            db.execute(
                "update images set code = ?, attempts = attempts + 1, failing_since = ?,"
                " not_before = ?, resume = state, state = ? where digest = ? and state = ?",
                (
                    code, since, not_before, "stuck" if is_stuck else entry.state, entry.digest,
                    entry.state,
                ),
            )  # fmt: skip
        return is_stuck

    @staticmethod
    def _move(db: sqlite3.Connection, digest: str, old: str | None, new: str, code: str) -> None:
        db.execute(
            "update images set state = ?, code = ?, attempts = 0, not_before = 0,"
            " failing_since = null, changed_at = ? where digest = ? and state = coalesce(?, state)",
            (new, code, time.time(), digest, old),
        )

    def retry(self, prefix: str = "") -> int:
        """Take up images that are stuck, and those that wait out a failure; return how many."""
        with self._transaction() as db:
            return db.execute(
                "update images set state = case state when 'stuck' then resume else state end,"  # noqa: S608
                " attempts = 0, not_before = 0, failing_since = null where digest glob ? and"
                f" (state = 'stuck' or (not_before > 0 and {_IS_WAITING}))",
                (f"{prefix}*",),
            ).rowcount

    def forget(self, prefix: str) -> list[str]:
        """Remove images and objects from the journal; return the digests."""
        with self._transaction() as db:
            digests = db.execute("select digest from images where digest glob ?", (f"{prefix}*",))
            removed = [str(digest) for (digest,) in digests.fetchall()]
            for table in ("images", "objects"):
                db.execute(f"delete from {table} where digest glob ?", (f"{prefix}*",))  # noqa: S608
        return removed

    def out_of_spool(self, digests: Iterable[str]) -> None:
        """Note images whose files are gone."""
        with self._transaction() as db:
            db.executemany(
                "update images set in_spool = 0 where digest = ?", [(item,) for item in digests]
            )

    def older(self, seconds: float, *, in_spool: bool) -> list[str]:
        """Return images that were done or refused so long ago; with files in the spool, or any."""
        rows = self._rows(
            "select digest from images where state in ('done', 'refused') and changed_at <= ?"
            " and in_spool >= ?",
            (time.time() - seconds, int(in_spool)),
        )
        return [digest for (digest,) in rows]

    def counts(self) -> dict[str, int]:
        """Return the number of images in each state."""
        rows = self._rows("select state, count(*) from images group by state")
        return dict.fromkeys(STATES, 0) | dict(rows)

    def refusals(self) -> dict[str, int]:
        """Return the number of images that were refused by each code."""
        rows = self._rows(
            "select code, count(*) from images where state = 'refused' group by code order by code"
        )
        return dict(rows)

    def oldest_waiting_s(self) -> float:
        """Return how long the oldest image that waits has been here, seconds; 0: none waits."""
        question = f"select min(received_at) from images where {_IS_WAITING}"  # noqa: S608
        ((oldest,),) = self._rows(question)
        return 0.0 if oldest is None else max(0.0, time.time() - oldest)

    def troubles(self) -> list[tuple[str, str, str, int]]:
        """Return digest, state, code and attempts of images that are stuck or fail."""
        return self._rows(
            "select digest, state, code, attempts from images where state = 'stuck' or"  # noqa: S608
            f" (attempts > 0 and {_IS_WAITING}) order by received_at"
        )
