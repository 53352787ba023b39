"""The manifests are valid for several versions of Kubernetes, and keep what the page promises."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.settings import ServeSettings, read_service_settings
from pipelines.config import load_config
from pipelines.stages import stages_of
from tests.support.processes import ROOT, ended

KUBERNETES = ROOT / "docker/kubernetes"
VERSIONS = ("1.29", "1.37")
Objects = dict[str, dict[str, Any]]


def by_kind(text: str) -> Objects:
    return {tree["kind"]: tree for tree in yaml.safe_load_all(text)}


def rendered(overlay: str, folder: Path) -> Objects:
    """The base, or an overlay as the cluster would get it, here also with what fetches."""
    if overlay == "base":
        paths = (KUBERNETES / "base").glob("*.yaml")
        texts = (path.read_text() for path in paths if path.name != "kustomization.yaml")
        return by_kind("\n---\n".join(texts))
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl renders the overlays; it is not installed")
    if overlay == "fetch":
        shutil.copytree(KUBERNETES, folder / "tree")
        path = folder / "tree/cpu"
        kustomization = path / "kustomization.yaml"
        kustomization.write_text(kustomization.read_text() + "components: [../components/fetch]\n")
    else:
        path = KUBERNETES / overlay
    done = ended(["kubectl", "kustomize", path])
    assert done.returncode == 0, done.stderr
    return by_kind(done.stdout)


def pod_of(objects: Objects) -> dict[str, Any]:
    return objects["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture
def base(tmp_path: Path) -> Objects:
    return rendered("base", tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", ["base", "cpu", "gpu", "fetch"])
def test_every_object_is_valid_and_no_field_misspelt(tmp_path, overlay, version):
    validator = pytest.importorskip("kubernetes_validate")
    objects = rendered(overlay, tmp_path)
    for tree in objects.values():
        if overlay == "base" and tree["kind"] == "Deployment":
            continue  # kustomize adds its labels and selector
        validator.validate(tree, version, strict=True)
    policy = objects["NetworkPolicy"]
    policy["spec"]["egres"] = []
    with pytest.raises(validator.ValidationError):
        validator.validate(policy, version, strict=True)


@pytest.mark.parametrize("overlay", ["cpu", "gpu", "fetch"])
def test_every_container_is_restricted(tmp_path: Path, overlay: str) -> None:
    pod = pod_of(rendered(overlay, tmp_path))
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize(("overlay", "device"), [("cpu", "cpu"), ("gpu", "cuda:0")])
def test_the_overlay_sets_image_and_device(tmp_path: Path, overlay: str, device: str) -> None:
    pod = pod_of(rendered(overlay, tmp_path))
    (container,) = pod["containers"]
    assert container["image"].endswith(f"-{overlay}")
    given = {item["name"]: item["value"] for item in container["env"]}
    assert read_service_settings(None, {**given, "MEDCLIP_MODEL": "m"}).device == device
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (overlay == "gpu")


def test_keys_are_a_folder_that_the_group_alone_reads(base: Objects) -> None:
    pod = pod_of(base)
    volumes = {item["name"]: item for item in pod["volumes"]}
    secret = volumes["keys"]["secret"]
    assert secret["defaultMode"] == 0o440
    assert pod["securityContext"]["fsGroup"] == 10001
    (mount,) = (item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "keys")
    assert mount["mountPath"] == "/run/secrets"
    assert "subPath" not in mount  # a changed secret is seen in a folder alone


def test_a_pod_gets_the_time_that_it_needs_to_stop_and_reaches_nothing(base: Objects) -> None:
    pod, policy = pod_of(base), base["NetworkPolicy"]["spec"]
    (container,) = pod["containers"]
    wait_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = ServeSettings(model="m").drain_s
    assert pod["terminationGracePeriodSeconds"] > wait_s + drain_s
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []


def test_selectors_find_the_pods(tmp_path: Path) -> None:
    objects = rendered("cpu", tmp_path)
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        objects["Deployment"]["spec"]["selector"]["matchLabels"],
        objects["Service"]["spec"]["selector"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector and selector.items() <= labels for selector in selectors)


def test_what_is_not_listed_is_not_fetched_and_what_differs_is_refused(tmp_path: Path) -> None:
    component = yaml.safe_load((KUBERNETES / "components/fetch/kustomization.yaml").read_text())
    patch = yaml.safe_load(component["patches"][0]["patch"])
    (container,) = patch[-1]["value"]
    *shell, script = container["command"]
    script = re.sub(r"(?<!\w)/(?=(from|published|digests)\b)", f"{tmp_path}/", script)
    for name in ("from", "published", "digests"):
        (tmp_path / name).mkdir()
    for name in ("model/text/config.json", "model.graphs/image.onnx"):
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).write_text(name)
    listed = tmp_path / "digests/published.sha256"
    digest = hashlib.sha256(b"model/text/config.json").hexdigest()

    def fetch() -> int:
        return ended([*shell, script]).returncode

    listed.write_text("# none\n")
    assert fetch() != 0
    listed.write_text(f"{digest}  model/text/config.json\n")
    assert fetch() == 0
    fetched = [path for path in (tmp_path / "published").rglob("*") if path.is_file()]
    assert fetched == [tmp_path / "published/model/text/config.json"]
    (tmp_path / "from/model/text/config.json").write_text("other")
    assert fetch() != 0


def test_the_jobset_runs_every_stage_of_a_recipe_one_job_after_the_other() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    tree = yaml.safe_load((KUBERNETES / "training/jobset.yaml").read_text())
    jobs, stages = tree["spec"]["replicatedJobs"], []
    before = [job.get("dependsOn") for job in jobs]
    names = [job["name"] for job in jobs]
    assert before == [None, *([{"name": name, "status": "Complete"}] for name in names[:-1])]
    for job in jobs:
        # The API requires names of at most 63 characters: the pod's is the longest.
        assert len(f"medclip-{job['name']}-0-1-abcde") <= 63
        spec = job["template"]["spec"]
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
        validator.validate({**whole, "spec": spec}, "1.37", strict=True)
        (container,) = spec["template"]["spec"]["containers"]
        words = container["command"]
        is_spread = "torch.distributed.run" in words
        assert spec["parallelism"] == spec["completions"] == (2 if is_spread else 1)
        own = [json.loads(word.removeprefix("jobs=")) for word in words if word.startswith("jobs=")]
        stages += own[0] if own else [words[words.index("--config") - 1].rpartition(".")[2]]
        if is_spread:
            assert f"medclip-{job['name']}-0-0.medclip:29500" in words
            gpus = container["resources"]["limits"]["nvidia.com/gpu"]
            assert words[words.index("--nproc-per-node") + 1] == str(gpus)
    recipe = load_config(Path("configs/train/mimic_cxr.yaml"))
    assert stages == list(stages_of(recipe))
    train = jobs[names.index("train")]["template"]["spec"]["template"]["spec"]
    assert "train.processes=16" in train["containers"][0]["command"]
