# In place of prom/prometheus: Debian's Prometheus 2.42.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget \
    && rm -rf /var/lib/apt/lists/* /etc/prometheus && mkdir -p /etc/prometheus /prometheus \
    && chown nobody /prometheus
VOLUME /prometheus
WORKDIR /prometheus
USER nobody
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
