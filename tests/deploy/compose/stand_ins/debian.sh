#!/bin/sh
# Makes the root file system of a Debian image like this machine's release, as a tar file:
#   debian.sh FILE.tar        (root; needs debootstrap)
set -eu
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    sed -n "s/^$release main //p" | sed -n 1p)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debootstrap --variant=minbase --include=ca-certificates "$release" "$work/root" "$mirror" >"$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; exit 1; }
rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/*
# The certificates that this machine trusts: a package index may be behind one of its own.
cp -L /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/"
# As in Debian's own image: apt leaves nothing behind.
cat >"$work/root/etc/apt/apt.conf.d/docker-clean" <<'END'
Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };
END
rm -f "$work"/root/var/cache/apt/*.bin
tar -C "$work/root" --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -cf "$1.part" .
mv "$1.part" "$1"
