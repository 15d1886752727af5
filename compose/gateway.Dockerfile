# The gateway, the maintenance process, and workers with the simulated engine: whatever runs without torch.
#   docker build -f compose/gateway.Dockerfile .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Of pip's own settings those that say where packages come from.
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_NO_INDEX
ENV PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv --without-pip /venv
WORKDIR /src
COPY pyproject.toml compose/constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=compose/wheels,target=/wheels \
    python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*p['dependencies'], *p['optional-dependencies']['tracing'], sep='\n')" >requirements.txt \
    && python3 -m pip --python /venv/bin/python install -q -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY shared shared
COPY gateway gateway
COPY worker worker
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=compose/wheels,target=/wheels \
    python3 -m pip --python /venv/bin/python install -q --no-deps .

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Flotilla gateway" \
      org.opencontainers.image.description="The OpenAI-compatible gateway of Flotilla, and its maintenance" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 flotilla \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp flotilla \
    && install -d -o 10001 -g 10001 /files # a new volume there has the same owner
COPY --from=build /venv /venv
COPY --chmod=755 compose/probe.py /usr/local/bin/probe
# Nothing is written but to /tmp: the root file system may be read-only.
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    FLOTILLA_HOST=0.0.0.0 FLOTILLA_WORKER_HOST=0.0.0.0
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 CMD ["probe", "8000/readyz"]
CMD ["python", "-m", "gateway"]
