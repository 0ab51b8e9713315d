"""Digits of one size to learn from, digits of other sizes to recognize: the command ``scalespaces demo``."""

__all__: list[str] = []
