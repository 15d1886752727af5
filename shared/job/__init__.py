"""A job and its log as data: record, states, entries, frames, errors. Pure."""
