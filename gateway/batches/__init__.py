"""Runs batches: checks their input, submits their lines as jobs, and writes their output."""
