"""The measured systems, one file each."""
