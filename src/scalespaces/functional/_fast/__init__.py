"""Faster ways to compute what the functions define."""
