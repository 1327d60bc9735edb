"""Masks, sinks and formats: what leaves a job process, and how people and programs see it.

In: masked events of jobs (`Sink.take`) and the facts of a run (`RunReport`). Out: text on a stream. Masking itself
stands here too, and is called by the engine before anything else sees a byte. Read `masks.py` first, then
`run_report.py`.
"""

from runyard.report.open import Format, open_sink
from runyard.report.run_report import JobFacts, RunReport
from runyard.report.sink import Sink

__all__ = ["Format", "JobFacts", "RunReport", "Sink", "open_sink"]
