"""The reader of eta and the reader of given tables."""

import numpy as np
import pyarrow as pa
import pytest

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ConfigError, ScoreError
from medclip_dcl.likelihood import eta
from medclip_dcl.likelihood.eta import read_given_table
from medclip_dcl.text.sentences import text_key
from tests.support.corpus import commit_tables

TEXTS = ("No effusion is seen.", "The lungs are clear.", "Heart size is normal.")


def seal(folder, keys, etas):
    rows = [
        {"text_key": key, "eta": eta, "pll_nats": None, "tokens": None, "count": 1}
        for key, eta in zip(keys, etas, strict=True)
    ]
    return commit_tables(folder, eta.ARTIFACT, {eta.ETA: rows})


def look_up(artifact: Artifact, keys: list[str]) -> np.ndarray:
    return eta.read_eta(artifact, pa.array(keys, pa.string()))


def test_etas_are_found_by_key_in_the_order_asked(tmp_path):
    keys = sorted(map(text_key, TEXTS))
    cache = seal(tmp_path / "eta", keys, [0.1, 0.2, 0.3])
    found = look_up(cache, [keys[2], keys[0], keys[2]])
    assert found.dtype == np.float64
    assert found.tolist() == [0.3, 0.1, 0.3]
    assert look_up(cache, []).shape == (0,)


@pytest.mark.parametrize("missing", ["0" * 32, "f" * 32, text_key("Never said before.")])
def test_a_missing_key_is_named_with_the_remedy(tmp_path, missing):
    keys = sorted(map(text_key, TEXTS))
    cache = seal(tmp_path / "eta", keys, [0.1, 0.2, 0.3])
    with pytest.raises(ScoreError, match=rf"1 sentences have no eta.*{missing}.*build_eta_cache"):
        look_up(cache, [keys[0], missing])


@pytest.mark.parametrize("wrong", [float("nan"), -0.01, 1.0, None])
def test_an_entry_that_is_no_probability_is_named(tmp_path, wrong):
    keys = sorted(map(text_key, TEXTS))
    with pytest.raises(ScoreError, match=rf"1 etas are not in \[0, 1\).*{keys[1]}.*build_eta"):
        look_up(seal(tmp_path / "eta", keys, [0.1, wrong, 0.3]), keys)


@pytest.mark.parametrize("column", ["eta", "rho"])
def test_given_values_are_keyed_by_normalised_text(tmp_path, column):
    path = tmp_path / "given.csv"
    path.write_text(
        f'{column},text,more\n0.25,"No  effusion, seen.",x\n0,Clear lungs.,y\n0.5,2. Edema.,z\n'
    )
    given = read_given_table(path)
    assert given == {
        text_key("No effusion, seen."): 0.25,
        text_key("Clear lungs."): 0.0,
        text_key("Edema."): 0.5,
    }


@pytest.mark.parametrize(
    "content",
    [
        "text,value\na,0.1\n",
        "eta\n0.1\n",
        "text,eta\na,high\n",
        "text,eta\na,1.5\n",
        "text,eta\na,-0.1\n",
        "text,eta\na,nan\n",
        "text,eta\na,0.1\na ,0.2\n",
        "",
    ],
)
def test_malformed_tables_are_refused(tmp_path, content):
    path = tmp_path / "given.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"eta\.table"):
        read_given_table(path)
