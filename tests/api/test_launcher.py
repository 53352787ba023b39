import json

import pytest

from api.launcher import main


@pytest.mark.parametrize(
    ("host", "code", "words"), [("0.0.0.0", 2, "loopback"), ("127.0.0.1", 4, "no model in m")]
)
def test_what_cannot_start_says_why(tmp_path, capsys, host, code, words):
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"model": "m", "allow_anonymous": True}))
    assert main(["--config", str(file), "--host", host, "--port", "0"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
