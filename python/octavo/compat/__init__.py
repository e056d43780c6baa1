"""Reproductions of other libraries' number formats, for comparison and for importing old settings only.

Nothing else in octavo imports this package. Source: FORMATS.md section 7.
"""
