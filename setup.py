"""The optional extensions: where they do not compile, the library runs on plain torch operations."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "datransformer.ops.blocked_kernels",
            ["src/datransformer/ops/blocked_kernels.cpp"],
            depends=["src/datransformer/ops/blocked_tiles.h"],
            # No -fopenmp for the linker: the threads are those of the runtime that torch has loaded, not a second pool.
            extra_compile_args=[
                "-O3", "-std=c++17", "-fopenmp", "-fvisibility=hidden",
                "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi", "-Wno-ignored-attributes",
                "-Wno-uninitialized", "-Wno-maybe-uninitialized",  # in the compiler's own header of AVX-512
            ],
            optional=True,
        ),
        Extension(
            "datransformer.train.row_kernels",
            ["src/datransformer/train/row_kernels.cpp"],
            extra_compile_args=["-O3", "-std=c++17", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        ),
    ]
)  # fmt: skip
