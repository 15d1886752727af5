"""Tests of compose/kubernetes: what kustomize makes of it, without a cluster."""
