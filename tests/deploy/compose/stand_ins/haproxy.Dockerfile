# In place of haproxy: Debian's HAProxy 2.6.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends haproxy wget && rm -rf /var/lib/apt/lists/*
CMD ["haproxy", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
