"""From Redis to the client: relay, reader, answer, events."""
