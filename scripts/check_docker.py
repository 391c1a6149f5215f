"""Look over the files of docker/: hadolint for Dockerfiles, kubernetes-validate for the pods of the MPI Operator's job.

Called by test_docker.sh; needs docker/requirements.txt. The operator's own kind is not part of Kubernetes; pods are.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml

DOCKER = Path(__file__).resolve().parents[1] / "docker"


def pods(job: dict) -> list[dict]:
    """Return the pods that a job of the MPI Operator asks for."""
    replicas = job["spec"]["mpiReplicaSpecs"]
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, **replicas[name]["template"]}
        for name in ("Launcher", "Worker")
    ]


def main() -> int:
    """Print what is wrong; return the exit status."""
    files = sorted(DOCKER.glob("Dockerfile*"))
    status = subprocess.run([Path(sys.prefix) / "bin" / "hadolint", *files], check=False).returncode
    for pod in pods(yaml.safe_load((DOCKER / "kubernetes.yaml").read_text(encoding="utf-8"))):
        try:
            kubernetes_validate.validate(pod, "1.37", strict=True)
        except kubernetes_validate.ValidationError as error:
            print(f"kubernetes.yaml, {pod['metadata']['name']}: {error.message}", file=sys.stderr)
            status = 1
    images = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    print(f"looked over {len(files)} Dockerfiles, 2 pods and {len(images)} services")
    return status


if __name__ == "__main__":
    sys.exit(main())
