"""Builds the two C extensions where a compiler is there; the package works without them."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-fno-semantic-interposition", "-ffp-contract=off"]

setup(
    ext_modules=[
        Extension(
            f"orrery.engines.virtual.{name}",
            [f"src/orrery/engines/virtual/{name}.c"],
            extra_compile_args=FLAGS,
            optional=True,  # no compiler: the pure-Python twin is used, and `orrery doctor` says so
        )
        for name in ("_kernel", "_flows")
    ]
)
