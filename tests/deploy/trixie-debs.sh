#!/bin/sh
# Unpacks packages of Debian trixie, without installing anything: for tools that tests need and that
# the machine's own release lacks or has too old. Prints nothing when all is there already.
#
#   tests/deploy/trixie-debs.sh TARGET_DIR PACKAGE...     then: TARGET_DIR/usr/bin/...
#
# Only the packages named are unpacked, not what they depend on: meant for programs that stand alone.
# apt's state is private and temporary, so neither root nor `apt-get update` is needed and the
# machine's own lists stay as they are; the mirror is the one that its own apt uses.
set -eu

die() {
    echo "trixie-debs: $*" >&2
    exit 1
}

[ $# -ge 2 ] || die "usage: $0 TARGET_DIR PACKAGE..."
target=$1
shift
mkdir -p "$target"
target=$(cd "$target" && pwd)
done=$target/.trixie-debs # one empty file for each package that is unpacked in full

missing=
for package; do
    [ -e "$done/$package" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || die "needs Debian's $tool; not got:$missing"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keyring" ] || die "needs $keyring (Debian's package debian-archive-keyring); not got:$missing"
release=$(. /etc/os-release && [ "$ID" = debian ] && echo "${VERSION_CODENAME:-}") || release=
[ -n "$release" ] || die "needs Debian, to know a mirror of its archive; not got:$missing"
mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    sed -n "s/^$release main //p" | sed -n 1p)
[ -n "$mirror" ] || die "apt's sources name no mirror for '$release main'; not got:$missing"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/debs"
: >"$work/status"
echo "deb [signed-by=$keyring] $mirror trixie main" >"$work/sources.list"
private_apt() {
    apt-get -qq \
        -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State="$work/state" -o Dir::State::status="$work/status" \
        -o Dir::Cache="$work/cache" -o APT::Sandbox::User= -o Acquire::Languages=none \
        -o APT::Update::Error-Mode=any "$@"
}
private_apt update >&2 || die "cannot read trixie's package lists from $mirror; not got:$missing"

for package in $missing; do
    mkdir "$work/debs/$package"
    (cd "$work/debs/$package" && private_apt download "$package" >&2) ||
        die "cannot download $package of trixie from $mirror"
    dpkg-deb -x "$work/debs/$package/"*.deb "$target" || die "cannot unpack $package"
    mkdir -p "$done"
    : >"$done/$package"
    echo "trixie-debs: $(basename "$work/debs/$package/"*.deb .deb) in $target" >&2
done
