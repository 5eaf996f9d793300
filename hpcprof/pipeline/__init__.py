"""Chains the rooms: files of a job → store → results → findings → record and page.

No room calls the next; these modules do: ``ingest`` fills the store on the job's clock,
``analysis`` computes results from it, ``collection`` is what ``hpcprof collect`` calls.
"""

from hpcprof.pipeline.analysis import Analysis, analyse
from hpcprof.pipeline.collection import Collected, collect, write_page
from hpcprof.pipeline.ingest import Ingested, ingest

__all__ = ["Analysis", "Collected", "Ingested", "analyse", "collect", "ingest", "write_page"]
