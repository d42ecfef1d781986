"""A folder of results that are found again by a key: checked when they are read, written whole, bounded in size."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import zlib
from pathlib import Path

from jaxplan.core._files import write_whole
from jaxplan.core._log import logger, warn_once
from jaxplan.errors import SaveError

MAX_BYTES = 1 << 30
"""Of all entries of a folder: the ones used longest ago go first. An entry of a large model takes some 100 kB."""
_MOST_ENTRY_BYTES = 1 << 28
"""A larger entry is not read: a damaged one could ask for any amount of memory."""
_SUFFIX = ".plans"
_ENTRY = re.compile(r"[0-9a-f]{64}" + re.escape(_SUFFIX))
_DAMAGED_MSG = (
    "the entry {path} of the cache of plans is damaged ({reason}), and is written anew.\n"
    "  likely cause: the disk was full, or the file was copied in part or edited"
)
_UNWRITABLE_MSG = "plans are not kept in {folder}: {reason}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiskCache:
    """Results by key in a folder, which is made when the first one is kept.

    Several processes may use one folder at once. Reading and writing never fail: a damaged entry and a folder that
    cannot be written lead to one warning.

    Attributes:
      folder: where the entries are; other files in it stay as they are.
      max_bytes: of all entries.
    """

    folder: Path
    max_bytes: int = MAX_BYTES

    def path(self, key: str) -> Path:
        """The file of a key, 64 hexadecimal digits."""
        return self.folder / f"{key}{_SUFFIX}"

    def read(self, key: str) -> bytes | None:
        """What was kept for the key; None where nothing is, or it is damaged."""
        path = self.path(key)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            warn_once(_UNWRITABLE_MSG.format(folder=self.folder, reason=error), cause=f"cache {self.folder}")
            return None
        digest, _, packed = content.partition(b"\n")
        if digest != _digest(key, packed):
            self.report(key, "its checksum is another")
            return None
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, _MOST_ENTRY_BYTES)
        if unpacker.unconsumed_tail:
            self.report(key, f"it has more than {_MOST_ENTRY_BYTES} bytes")
            return None
        with contextlib.suppress(OSError):  # a folder that may only be read
            os.utime(path)  # the time of use, by which entries go
        return data

    def report(self, key: str, reason: str) -> None:
        """Warn once that an entry is damaged."""
        warn_once(_DAMAGED_MSG.format(path=self.path(key), reason=reason))

    def write(self, key: str, data: bytes) -> None:
        """Keep data for the key, and drop the entries used longest ago beyond the bound."""
        packed = zlib.compress(data, 1)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.path(key), _digest(key, packed) + b"\n" + packed)
        except (OSError, SaveError) as error:
            reason = str(error).partition("\n")[0]
            warn_once(_UNWRITABLE_MSG.format(folder=self.folder, reason=reason), cause=f"cache {self.folder}")
            return
        self._shrink()

    def _shrink(self) -> None:
        """Remove entries, those used longest ago first, until the rest is within the bound."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process has just removed it
                    if _ENTRY.fullmatch(entry.name):
                        found.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
        room = self.max_bytes - sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if room >= 0:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            logger.debug("dropped %s from the cache of plans", path)
            room += size


def _digest(key: str, packed: bytes) -> bytes:
    return hashlib.sha256(key.encode() + packed).hexdigest().encode()
