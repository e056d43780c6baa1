"""Studies: questions about formats that one command answers, with a journal, a table and a picture.

:mod:`ptq_qat <octavo.lab.studies.ptq_qat>`: accuracy against width. :mod:`formats
<octavo.lab.studies.format_families>`: every family at its best. :mod:`memory <octavo.lab.studies.memory>`: bytes,
counted and measured. Each point is measured on test texts once, and found again in the journal after that.
:mod:`compile <octavo.lab.studies.compile_speed>` and :mod:`attention <octavo.lab.studies.attention_speed>`: questions
of speed.
"""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
