"""The overview: the state of the fleet for people, read once a second while viewers are there."""
