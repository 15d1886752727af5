# A worker on vLLM's own image for NVIDIA GPUs, with the demo model.
#   docker build -f compose/worker-gpu.Dockerfile .
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${VLLM_IMAGE}
ARG UV_CACHE_DIR=/root/.cache/uv
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Flotilla worker (GPU)" \
      org.opencontainers.image.description="A worker of Flotilla with vLLM for NVIDIA GPUs, and a demo model" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER root
RUN (getent group 10001 || groupadd --gid 10001 flotilla) \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /cache flotilla \
    && install -d -o 10001 -g 10001 /cache
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY gateway gateway
COPY worker worker
# Adds the few packages that are missing, and changes none that vLLM came with: the build fails rather.
# Where they come from is in a secret, uv's own file of settings: the address of an index may hold a
# password, and an argument would stay in the image's history.
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=uv_config,target=/etc/uv/uv.toml \
    --mount=type=bind,source=compose/wheels,target=/wheels \
    python=$(command -v python3) \
    && uv pip freeze --python "$python" | grep -E '^[A-Za-z0-9._-]+==' >/tmp/present.txt \
    && uv pip install --python "$python" --break-system-packages --find-links /wheels \
        --compile-bytecode -c /tmp/present.txt '.[audio]' \
    && rm /tmp/present.txt
COPY --chmod=755 compose/probe.py /usr/local/bin/probe
# Written are /tmp and, to be kept, /cache: models of a hub, and what is compiled for this GPU. The
# root file system may be read-only.
ENV HOME=/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 FLOTILLA_WORKER_HOST=0.0.0.0
WORKDIR /tmp
USER 10001:10001
VOLUME /cache
EXPOSE 8100
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=15m --retries=3 CMD ["probe", "8100/readyz"]
ENTRYPOINT []
CMD ["python3", "-m", "worker"]
