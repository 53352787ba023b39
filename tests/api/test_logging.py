import json
import logging

from api.logging import LOGGER, JsonFormatter, RepeatFilter, log_fault


def line_of(record: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def record(name: str, message: str, **extra: object) -> logging.LogRecord:
    facts = {"name": name, "levelno": logging.WARNING, "msg": message}
    return logging.makeLogRecord(facts | extra)


def test_our_lines_carry_their_facts_and_of_other_libraries_the_name_alone_is_written() -> None:
    line = line_of(record(LOGGER.name, "request", facts={"request_id": "a\nb", "status": 200}))
    assert (line["event"], line["request_id"], line["status"]) == ("request", "a\nb", 200)
    assert line_of(record("python_multipart", "byte 48"))["event"] == "record of python_multipart"
    assert line_of(record("uvicorn.error", "Shutting down"))["event"] == "Shutting down"


def test_a_fault_names_its_type_and_place_but_not_its_message(caplog):
    try:
        raise ValueError("Jane Doe")
    except ValueError as error:
        log_fault("fault", error, request_id="r")
    (seen,) = caplog.records
    line = line_of(seen)
    assert line["error"] == "ValueError"
    assert "test_logging" in str(line["where"])
    assert "Doe" not in json.dumps(line)


def test_of_lines_that_strangers_cause_the_first_are_written_and_the_others_counted(monkeypatch):
    repeats, counted = RepeatFilter(), []
    monkeypatch.setattr("api.logging.log", lambda event, **facts: counted.append((event, facts)))
    stranger = record(LOGGER.name, "request", kind="request /x 401 unauthorized")
    malformed = record("uvicorn.error", "Invalid HTTP request received.")
    with_key = record(LOGGER.name, "request", kind="")
    for line, written in ((stranger, 10), (malformed, 10), (with_key, 50)):
        assert sum(repeats.filter(line) for _ in range(50)) == written
    assert counted == []
    repeats._since -= 11
    assert repeats.filter(stranger)
    assert counted == [
        ("repeated", {"lines": 40, "kind": "request /x 401 unauthorized"}),
        ("repeated", {"lines": 40, "kind": "uvicorn.error: Invalid HTTP request received."}),
    ]
