"""A short fleet of a program's own, for requests without a server."""

from gateway.offline.local_fleet import LocalFleet as LocalFleet
