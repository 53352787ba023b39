"""A config is read as it is written, and a misspelt key never passes."""

import json
from pathlib import Path

import pytest

from api.settings import ServeSettings
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.settings import read_settings_of, resolve_path
from pipelines.config import WITHDRAWN, check_config, load_config
from pipelines.stages import stages_of


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("work: runs/x\neta:\n  a: 0.1\n", encoding="utf-8")
    return path


def test_file_and_overrides_are_merged(config_file: Path) -> None:
    config = load_config(config_file, ["eta.k=0.5", "train.learning_rate=1e-5", "seed=3"])
    assert (config.eta.a, config.eta.k) == (0.1, 0.5)
    assert (config.train.learning_rate, config.seed) == (1e-5, 3)
    config = load_config(config_file, ['eta={"k": 0.5}'])
    assert (config.eta.a, config.eta.k) == (0.1, 0.5)  # what is not named stays


def test_a_base_may_have_a_base(config_file: Path) -> None:
    middle, over = config_file.parent / "more/middle.yaml", config_file.with_name("over.yaml")
    middle.parent.mkdir()
    middle.write_text("base: ../config.yaml\nseed: 4\neta: {k: 0.3}\n", encoding="utf-8")
    over.write_text("base: more/middle.yaml\nseed: 5\n", encoding="utf-8")
    config = load_config(over)
    assert (config.work, config.seed, config.eta.a, config.eta.k) == ("runs/x", 5, 0.1, 0.3)


def test_a_config_of_a_packaged_name_may_have_that_one_as_its_base(tmp_path: Path) -> None:
    own = tmp_path / "demo.yaml"
    own.write_text("base: demo\nseed: 7\n", encoding="utf-8")
    packaged = load_config(Path("demo"), [f"work={tmp_path}", "seed=7"])
    assert load_config(own, [f"work={tmp_path}"]) == packaged


OWN_BASE = r"over\.yaml is, by way of its bases, its own base: "


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("nowhere.yaml", r"base of .*over\.yaml, .*nowhere\.yaml does not exist"),
        *((base, OWN_BASE) for base in ("over.yaml", "over", "config.yaml")),
    ],
)
def test_a_base_that_is_missing_or_leads_back_is_refused(config_file, base, message):
    config_file.write_text("base: over.yaml\nwork: x\n", encoding="utf-8")
    over = config_file.with_name("over.yaml")
    over.write_text(f"base: {base}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_config(over)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        *((bad, ".") for bad in ("eta.b=1", "etaa.a=0.1", "eta.a=1", "eta.a=NaN", "eta.a.x=1")),
        *((bad, ".") for bad in ("eta", "=1", "train.steps=0")),
        ("objective.knd=infonce", r"\.knd is not a setting; did you mean objective\.kind\?$"),
        ("objectiv.kind=infonce", r"objectiv is not a setting; did you mean objective\?$"),
        ("eta.epochs=3", r"did you mean (pretrain\.epochs or )?train\.epochs\?$"),
        ("source.column.text=a", r"did you mean source\.columns\?$"),
        ("zzz=1", r"zzz is not a setting; remove it, or correct the name$"),
        ("Trian.steps=1", r"did you mean train\?$"),
        ("evaluate.adapter.model=biovil", r"must read module:callable, or make a package of the"),
        ("eta.fit=a_k", r"eta\.fit is not a setting; did you mean"),
        (f"eta.a={'x' * 500}", r"eta\.a = 'x{59}\.\.\.: Input"),
    ],
)
def test_an_override_that_is_none_is_refused_with_the_one_that_is_meant(
    config_file, override, meant
):
    with pytest.raises(ConfigError, match=meant):
        load_config(config_file, [override])


def test_a_withdrawn_setting_may_say_what_holds_now_and_a_missing_one_is_named(config_file):
    same = [f"{name}={json.dumps(value)}" for name, value in WITHDRAWN.items()]
    assert load_config(config_file, same) == load_config(config_file)
    with pytest.raises(ConfigError, match=r"config x: work is missing; set it$"):
        check_config({"eta": {"a": 0.1}}, "x")


BILLIONS = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefghij", "bcdefghijk", strict=True)
)
DEMO = "base: demo\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # What YAML reads otherwise than it was meant.
        (f"{DEMO}train: {{steps: yes}}", r"train\.steps = True: give a number; YAML reads yes, no"),
        (f"{DEMO}train:", r"train = None: give lines of `key: value` below it, or remove it$"),
        (
            f"{DEMO}train.steps: 1",
            r"not a setting; write `train:`, and below it, indented, `steps: \.\.\.`",
        ),
        (f"{DEMO}work: 2026-01-01", r"work = 2026-01-01: .* string; put it in quotes$"),
        (f"{DEMO}objective: {{kind: infonec}}", r"objective\.kind = 'infonec': there is no loss"),
        ("# nothing yet\n", r"config\.yaml is empty; `medclip init TABLE` writes one"),
        # Faults of YAML, by line and column.
        ("work: a\n\tb: 1\n", r"config\.yaml, line 2, column 1: found character '\\t' that"),
        ("work: a: b\n", r"line 1, column 8: mapping values are not allowed here; correct it$"),
        ("work: *secret\n", r"line 1, column 7: found undefined alias a name; correct it$"),
        ("work: a\neta:\n  a: 1\n  a: 2\n", r"line 4, column 3: this key stands above already;"),
        ("work: \x07\n", r"config\.yaml is not a YAML file"),
        # What would grow.
        (BILLIONS, "aliases that stand for more than 100000 values"),
        ("work: x\neta: &e {a: *e}\n", "more than 32 deep"),
        (f"work: {'[' * 5000}{']' * 5000}\n", "more than 32 deep"),
        (f"seed: {'9' * 100_000}\n", "more than 64 digits"),
        (f"seed: 0x{'9' * 100_000}\n", "more than 64 digits"),
    ],
    ids=range(16),
)
def test_a_file_that_cannot_be_meant_is_refused_and_not_printed(config_file, text, message):
    config_file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(config_file)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/e.yaml", r"config nowhere/e\.yaml does not exist; give a file, or a name such"),
        ("dmo", r"config dmo does not exist; did you mean demo\?$"),
        ("configs/train/tabel.yaml", r"does not exist; did you mean train/table\?$"),
        (".", r"config \. cannot be read: Is a directory$"),
    ],
)
def test_a_config_that_is_not_there_is_told_from_one_that_cannot_be_read(name, message):
    with pytest.raises(ConfigError, match=message):
        load_config(Path(name))


def test_work_and_environment_stand_in_paths(config_file, monkeypatch):
    config = load_config(config_file)
    monkeypatch.setenv("ARCHIVE", "/data/archive")
    assert resolve_path("${WORK}/studies", config.work) == Path("runs/x/studies")
    assert resolve_path("${ARCHIVE}/files", config.work) == Path("/data/archive/files")


def test_images_are_pretrained_on_where_training_starts_from_those_weights(config_file):
    own = load_config(config_file, ["model.image.pretrained=${WORK}/image_weights"])
    plain, stages = stages_of(load_config(config_file)), stages_of(own)
    assert set(stages) - set(plain) == {"pretrain_images"}
    assert stages[stages.index("pretrain_images") + 1] == "train"


@pytest.mark.parametrize(
    "address", ["https://gateway:SECRET@pacs.intern/web", "tcp://SECRET@head:8786"]
)
def test_an_address_with_a_password_is_refused_and_not_repeated(config_file, address):
    for override in (f"source.archive={address}", f'source.frontal_views=["{address}"]'):
        with pytest.raises(ConfigError, match="user or password") as caught:
            load_config(config_file, [override])
        assert override.partition("=")[0] in str(caught.value)
        assert "SECRET" not in str(caught.value)
    environment = {"MEDCLIP_MODEL": address}
    with pytest.raises(ConfigError, match="model is an address with a user or password"):
        read_settings_of(ServeSettings, None, environment, "MEDCLIP_")
    assert load_config(config_file, ["source.archive=https://pacs.intern/a@b"])
