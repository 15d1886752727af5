# In place of redis:7.2: Debian's Redis 7.0, with the user and the folders of the official image.
ARG BASE
FROM ${BASE}
RUN groupadd -r -g 999 redis && useradd -r -g redis -u 999 redis \
    && apt-get update && apt-get install -y --no-install-recommends redis-server redis-tools \
    && rm -rf /var/lib/apt/lists/* && mkdir /data && chown redis:redis /data
VOLUME /data
WORKDIR /data
CMD ["redis-server"]
