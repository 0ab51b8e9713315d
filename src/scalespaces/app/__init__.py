"""The explorer: a local page that shows scale-spaces, equivariance errors and predictions of one's own images."""

__all__: list[str] = []
