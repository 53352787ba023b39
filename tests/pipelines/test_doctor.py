import torch

from medclip_dcl.data import images
from pipelines import doctor

CONFIG = "configs/demo.yaml"


def answers(capsys, *arguments):
    code = doctor.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    return code, {line[6:20].strip(): (line[:6].strip(), line[20:]) for line in lines}


def test_a_sound_machine_has_no_fault(capsys):
    code, found = answers(capsys, "--config", CONFIG)
    assert code == 0
    assert {state for state, _ in found.values()} <= {"ok", "note"}
    assert found["image gate"] == ("ok", "a worker process decoded 256 x 256 pixels")
    assert found["processes"] == ("ok", "train.processes 1, 64 pairs each of a batch of 64")


def test_a_machine_on_which_no_decode_worker_starts_has_a_fault(monkeypatch):
    monkeypatch.setattr(images, "_BOOT", "raise SystemExit")
    monkeypatch.setattr(images, "_decoders", {})
    found = doctor._gate()
    assert (found.state, found.words.split(" (")[0]) == ("fault", "no decode worker starts")


def without_driver() -> None:
    raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have one.")


def test_a_missing_driver_is_a_fault_where_there_is_a_gpu_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.version, "cuda", "13.0")  # PyPI's default build
    monkeypatch.setattr(torch.cuda, "init", without_driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "_PCI", tmp_path)
    for name, vendor in (("0000:00:00.0", "0x8086"), ("0000:00:01.0", "0x1af4")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
    code, found = answers(capsys)
    assert code == 0
    assert found["torch"][0] == "note"
    assert "no NVIDIA GPU" in found["torch"][1]
    assert answers(capsys, "--gpu")[0] == 2  # who asks for one must have it
    (tmp_path / "0000:00:02.0").mkdir()
    (tmp_path / "0000:00:02.0" / "vendor").write_text("0x10de\n")
    code, found = answers(capsys)
    assert code == 2
    assert found["driver"][0] == "fault"


def test_a_launcher_that_starts_too_few_processes_is_a_fault(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, found = answers(capsys, "--config", CONFIG, "--set", "train.processes=4")
    assert code == 2
    assert found["processes"] == (
        "fault",
        "train.processes 4, 16 pairs each of a batch of 64; the launcher started 2",
    )


def test_the_gpu_alone_is_asked_and_one_must_work(capsys):
    code, found = answers(capsys, "--gpu")
    states = [state for state, _ in found.values()]
    if torch.cuda.is_available():
        assert code == 0
        assert set(states) == {"ok"}
    else:
        assert code == 2
        assert states[-1] == "fault"
        assert "processes" not in found
