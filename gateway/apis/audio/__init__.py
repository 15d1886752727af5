"""Transcriptions, translations and speech."""
