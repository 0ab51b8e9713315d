"""The explorer: a local page that shows scale-spaces, equivariance errors and predictions for your own images."""

__all__: list[str] = []
