"""A config is read as it is written, and a misspelt key never passes."""

from pathlib import Path

import pytest

from medclip_dcl.config import REMOVED, RENAMED, Config, load_config, resolve_path
from medclip_dcl.errors import ConfigError


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("work: runs/x\neta:\n  a: 0.1\n", encoding="utf-8")
    return path


def test_file_and_overrides_are_merged(config_file: Path) -> None:
    config = load_config(config_file, ["eta.k=0.5", "train.learning_rate=1e-5", "seed=3"])
    assert (config.eta.a, config.eta.k, config.train.learning_rate, config.seed) == (
        0.1,
        0.5,
        1e-5,
        3,
    )


def test_a_base_is_changed_section_by_section_and_overrides_come_last(config_file: Path) -> None:
    over = config_file.with_name("over.yaml")
    over.write_text("base: config.yaml\nseed: 4\neta:\n  k: 0.3\njobs: [train]\n", encoding="utf-8")
    config = load_config(over, ["eta.k=0.5"])
    assert (config.work, config.seed, config.jobs) == ("runs/x", 4, ("train",))
    assert (config.eta.a, config.eta.k) == (0.1, 0.5)


@pytest.mark.parametrize(
    ("base", "message"),
    [("nowhere.yaml", "base of .*over.yaml, .*cannot be read"), ("over.yaml", "a base itself")],
)
def test_a_base_that_is_missing_or_has_a_base_is_refused(
    config_file: Path, base: str, message: str
) -> None:
    over = config_file.with_name("over.yaml")
    over.write_text(f"base: {base}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_config(over)


@pytest.mark.parametrize("text", ["no", "00123", "1.5.0"])
def test_value_that_is_no_json_stays_a_string(config_file: Path, text: str) -> None:
    assert load_config(config_file, [f"eta.table={text}"]).eta.table == text


@pytest.mark.parametrize(
    "override",
    ["eta.b=1", "etaa.a=0.1", "eta.a=1", "eta.a=NaN", "eta.a.x=1", "eta", "=1", "train.steps=0"],
)
def test_bad_override_is_refused(config_file: Path, override: str) -> None:
    with pytest.raises(ConfigError):
        load_config(config_file, [override])


def test_message_names_the_key_and_the_value(config_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"eta\.a = 7"):
        load_config(config_file, ["eta.a=7"])


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("train.validate_films=3", r"train\.validate_films was renamed train\.validate_images$"),
        ("evaluate.geometry=paper", r"geometry=paper was renamed evaluate\.geometry=whole$"),
        ("evaluate.people.sex=s", r"evaluate\.people was renamed evaluate\.demographics$"),
    ],
)
def test_a_renamed_setting_is_refused_with_its_new_name(
    config_file: Path, override: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=remedy):
        load_config(config_file, [override])


def test_a_removed_setting_is_refused_with_its_remedy(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REMOVED, "eta.floor", "it is 0 for every sentence")
    with pytest.raises(ConfigError, match=r"eta\.floor was removed: it is 0 for every sentence$"):
        load_config(config_file, ["eta.floor=0.1"])


def _has(section: type, names: list[str]) -> bool:
    field = section.model_fields.get(names[0])  # type: ignore[attr-defined]
    return field is not None and (len(names) == 1 or _has(field.annotation, names[1:]))


def test_the_tables_of_old_settings_are_sorted_and_hold() -> None:
    for table in (RENAMED, REMOVED):
        assert list(table) == sorted(table)
        assert [key for key in table if _has(Config, key.split("."))] == []
    named = [key.partition("=")[0] for key in RENAMED.values()]
    assert [key for key in named if not _has(Config, key.split("."))] == []


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "eta: 3"])
def test_file_that_holds_no_sections_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        load_config(path)


def test_config_is_frozen(config_file: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config(config_file).eta.a = 0.3  # type: ignore[misc]


def test_work_and_environment_stand_in_paths(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(config_file)
    monkeypatch.setenv("ARCHIVE", "/data/archive")
    assert resolve_path("${WORK}/studies", config) == Path("runs/x/studies")
    assert resolve_path("${ARCHIVE}/files", config) == Path("/data/archive/files")


def test_unset_variable_is_an_error(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARCHIVE", raising=False)
    with pytest.raises(ConfigError, match="ARCHIVE"):
        resolve_path("${ARCHIVE}/files", load_config(config_file))


def test_every_field_says_what_it_means() -> None:
    def bare(section: type, prefix: str = "") -> list[str]:
        names = []
        for name, field in section.model_fields.items():  # type: ignore[attr-defined]
            names += [] if field.description else [prefix + name]
            if hasattr(field.annotation, "model_fields"):
                names += bare(field.annotation, f"{prefix}{name}.")
        return names

    assert bare(Config) == []
