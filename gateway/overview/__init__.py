"""The overview: the state of the fleet for people, read once a second while someone looks at it."""
