"""Tests of requests without a server."""
