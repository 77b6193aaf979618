"""Builds the three C extensions where a compiler is there; the package works without them."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-fno-semantic-interposition", "-ffp-contract=off"]

setup(
    ext_modules=[
        Extension(
            f"orrery.engines.{name}".replace("/", "."),
            [f"src/orrery/engines/{name}.c"],
            extra_compile_args=FLAGS,
            optional=True,  # no compiler: the pure-Python twin is used, and `orrery doctor` says so
        )
        for name in ("virtual/_kernel", "virtual/_flows", "processes/_sums")
    ]
)
