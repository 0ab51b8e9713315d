"""Training, evaluation and prediction: recipes run by Lightning, metrics at many scales, and masks of large images."""
