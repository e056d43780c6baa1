"""Studies: questions about formats that one command answers, with a journal, a table and a picture.

:mod:`ptq_qat <octavo.studies.ptq_qat>`: accuracy against width. :mod:`formats <octavo.studies.formats>`:
every family at its best. :mod:`memory <octavo.studies.memory>`: bytes, counted and measured. Each point is
measured on test texts once, and found again in the journal after that. :mod:`compile <octavo.studies.compile>`
and :mod:`attention <octavo.studies.attention>`: questions of speed.
"""
