"""Digits of one size to learn from, digits of other sizes to recognise: the command ``scalespaces demo``."""
