"""The OpenAPI document tells the truth, as far as it can be read off."""

from pathlib import Path
from typing import Any

from api.app import create_app
from api.auth import OPEN_PATHS
from api.errors import ERRORS, IMAGE_STATUS
from api.settings import ServeSettings
from medclip_dcl.data.limits import REASONS


def document(**settings: Any) -> dict[str, Any]:
    return create_app(ServeSettings(model="none", **settings)).openapi()


def operations(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {path: methods.popitem()[1] for path, methods in tree["paths"].items()}
    assert len(found) >= 9
    return found


def test_keys_are_asked_for_where_they_are_needed_and_nowhere_else(key_file: Path) -> None:
    tree = document(key_file=str(key_file))
    assert set(tree["components"]["securitySchemes"]) == {"key", "bearer"}
    for path, operation in operations(tree).items():
        assert bool(operation["security"]) is (path not in OPEN_PATHS), path
    anonymous = document(allow_anonymous=True)
    assert "securitySchemes" not in anonymous["components"]


def test_every_failure_has_its_status_code_and_line() -> None:
    tree = document(allow_anonymous=True)
    codes: dict[str, set[str]] = {}
    for path, operation in operations(tree).items():
        for status, answer in operation["responses"].items():
            if int(status) < 400:
                continue
            schema = answer["content"]["application/json"]["schema"]
            for code in schema["properties"]["code"]["enum"]:
                codes.setdefault(path, set()).add(code)
                known = {ERRORS.get(code), (IMAGE_STATUS.get(code, 422), REASONS.get(code))} - {
                    None
                }
                assert any(
                    int(status) == own and f"`{code}`: {line}" in answer["description"]
                    for own, line in known
                ), (path, code)
    for path in ("/classify", "/ground", "/retrieve", "/pixels"):
        assert set(REASONS) - {"missing", "constant"} <= codes[path]
        assert {"overloaded", "deadline", "body_deadline", "malformed_body"} <= codes[path]
    # A method that is in no operation, and a client that hears nothing any more.
    assert set(ERRORS) - set().union(*codes.values()) == {"method_not_allowed", "client_gone"}
    assert "ValidationError" not in str(tree)  # the framework's own words
