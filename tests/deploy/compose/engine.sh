#!/usr/bin/env bash
# Runs a command with a Docker engine and Compose v2: those that are there, or its own.
#
#   tests/deploy/compose/engine.sh COMMAND...
#
# Where no engine runs, one is made of Debian's packages (root needed), lives in a folder, and is
# gone at the end. Where no registry can be reached, stand-ins for the public images are made of
# Debian's packages too; PYTHON_IMAGE, REDIS_IMAGE, ... name them, so that the project's own files
# stay as they are. What takes long to make is kept in CACHE, by default ~/.cache/flotilla-compose
# (3 GB; 12 GB with the image of the real worker).
#
# Exit status 77: there can't be an engine here; the last line says why.
set -euo pipefail
cd "$(dirname "$0")/../../.."
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla-compose}
stand_ins=tests/deploy/compose/stand_ins

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }
skip() { echo "no compose test: $*"; exit 77; }

install_packages() { # those of the machine's own release that start no service
    local missing=() package
    for package; do command -v "$package" >/dev/null || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || skip "${missing[*]} not installed, and only root can"
    say "installs ${missing[*]}"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } ||
        skip "${missing[*]} can't be installed"
}

start_engine() {
    [ "$(id -u)" = 0 ] || skip "no Docker engine with Compose v2 runs, and only root can start one"
    command -v apt-get >/dev/null || skip "no Docker engine with Compose v2 runs, and no apt-get to get one"
    pgrep -x dockerd >/dev/null && skip "a Docker engine runs, but can't be used (docker info, docker compose version)"
    mkdir -p "$cache"
    cache=$(cd "$cache" && pwd)
    install_packages iptables runc
    tests/deploy/trixie-debs.sh "$cache/tools" docker-compose docker-buildx docker-cli docker.io containerd tini ||
        skip "no Docker engine runs, and its packages can't be had"
    run=$(mktemp -d)
    mkdir "$run/config"
    ln -s "$cache/tools/usr/libexec/docker/cli-plugins" "$run/config/cli-plugins"
    export PATH=$cache/tools/usr/bin:$PATH DOCKER_CONFIG=$run/config DOCKER_HOST=unix://$run/docker.sock DOCKER_SOCKET=$run/docker.sock
    unset DOCKER_CONTEXT
    # setsid: Ctrl-C is for the command; the engine is needed for its cleaning up.
    setsid "$cache/tools/usr/sbin/dockerd" --host "$DOCKER_HOST" --data-root "$cache/engine" \
        --exec-root "$run/exec" --pidfile "$run/dockerd.pid" --init-path "$cache/tools/usr/bin/tini-static" \
        --userland-proxy-path "$cache/tools/usr/sbin/docker-proxy" >"$run/log" 2>&1 &
    engine=$!
    trap stop_engine EXIT
    for _ in $(seq 300); do
        docker info >/dev/null 2>&1 && return
        kill -0 "$engine" 2>/dev/null || break
        sleep 0.2
    done
    tail -5 "$run/log"
    skip "a Docker engine does not start here"
}

stop_engine() {
    if kill "$engine" 2>/dev/null; then wait "$engine" || true; fi
    rm -rf "$run"
    say "the engine is stopped"
}

# Lets the variable name the public image that compose.yaml does, or a stand-in where that can't be
# had; nothing if it names an image already.
choose_image() { # VARIABLE STAND_IN
    [ -z "${!1:-}" ] || return 0
    local image
    image=$(sed -n "s/.*\${$1:-\([^}]*\)}.*/\1/p" compose/compose.yaml | sed -n 1p)
    if [ -n "$(docker image ls -q "stand-in/$2:local")" ]; then
        image=stand-in/$2:local
    elif ! docker image inspect "$image" >/dev/null 2>&1 &&
        ! timeout 300 docker pull -q "$image" >/dev/null 2>&1; then
        image=stand-in/$2:local
        make_stand_in "$2"
    fi
    export "$1=$image"
}

make_stand_in() {
    if [ -z "$(docker image ls -q stand-in/debian:local)" ]; then
        install_packages debootstrap
        $stand_ins/debian.sh "$run/debian.tar"
        docker import -c 'CMD ["bash"]' "$run/debian.tar" stand-in/debian:local >/dev/null
        rm "$run/debian.tar"
        say "a Debian for the stand-ins"
    fi
    docker build --build-arg BASE=stand-in/debian:local -f "$stand_ins/$1.Dockerfile" \
        -t "stand-in/$1:local" $stand_ins >"$run/build.log" 2>&1 || { tail -30 "$run/build.log"; exit 1; }
    say "stand-in for $1"
}

if docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; then
    run=$(mktemp -d)
    trap 'rm -rf "$run"' EXIT
else
    start_engine
fi
say "Docker engine $(docker version -f '{{.Server.Version}}'), compose $(docker compose version --short)"
choose_image PYTHON_IMAGE python
choose_image REDIS_IMAGE redis
choose_image PROMETHEUS_IMAGE prometheus
choose_image HAPROXY_IMAGE haproxy
# The machine's package index is the builds' too.
index=$(python3 -m pip config get global.index-url 2>/dev/null) && export PIP_INDEX_URL=${PIP_INDEX_URL:-$index}
"$@"
