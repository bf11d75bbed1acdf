"""Checkpoints: where they are, what they hold, and how models are filled with it and saved.

    state = checkpoints.read("nvidia/Cosmos-Predict1-4B")
    checkpoints.load(model, state, "cosmos/4b")

Reading never runs code from a file, every key must fit, and files appear whole or not at all.
"""

from __future__ import annotations

from diagonal.checkpoints.filling import load as load
from diagonal.checkpoints.filling import prefix as prefix
from diagonal.checkpoints.filling import randomise as randomise
from diagonal.checkpoints.filling import rename as rename
from diagonal.checkpoints.int8 import int8_rows as int8_rows
from diagonal.checkpoints.int8 import restore as restore
from diagonal.checkpoints.int8 import shrink as shrink
from diagonal.checkpoints.reading import read as read
from diagonal.checkpoints.reading import read_stored as read_stored
from diagonal.checkpoints.reading import settings as settings
from diagonal.checkpoints.sources import ASSETS as ASSETS
from diagonal.checkpoints.sources import EMBEDDED as EMBEDDED
from diagonal.checkpoints.sources import RANDOM as RANDOM
from diagonal.checkpoints.sources import READABLE as READABLE
from diagonal.checkpoints.sources import check_free as check_free
from diagonal.checkpoints.sources import files as files
from diagonal.checkpoints.sources import locate as locate
from diagonal.checkpoints.sources import released as released
from diagonal.checkpoints.state import State as State
from diagonal.checkpoints.state import Stored as Stored
from diagonal.checkpoints.state import some as some
from diagonal.checkpoints.state import whole as whole
from diagonal.checkpoints.writing import save as save
from diagonal.checkpoints.writing import save_tensors as save_tensors
