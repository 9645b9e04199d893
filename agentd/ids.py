"""Identifiers, as every program that records makes them."""

from tracewriter.ids import SESSION_ID as SESSION_ID
from tracewriter.ids import Ids as Ids
from tracewriter.ids import Random as Random
from tracewriter.ids import is_session_id as is_session_id
