# In place of python:3.11-slim: Debian's Python.
ARG BASE
FROM ${BASE}
ENV LANG=C.UTF-8
RUN apt-get update && apt-get install -y --no-install-recommends netbase tzdata python3-pip python3-venv \
    && ln -s /usr/bin/python3 /usr/local/bin/python && ln -s /usr/bin/python3 /usr/local/bin/python3 \
    && rm -rf /var/lib/apt/lists/*
# pip brings its own certificates; an index may be one that only this machine's bundle knows.
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
CMD ["python3"]
