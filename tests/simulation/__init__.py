"""Whole members in virtual time: production classes, one thread at a time. README.md beside this file has the rest."""
