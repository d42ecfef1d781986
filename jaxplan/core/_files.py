"""Files are written whole: a reader finds the old content or the new one, whatever happens to the writer."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from jaxplan.errors import SaveError

try:
    import fcntl
except ImportError:  # Windows: temporary files of killed writers stay
    fcntl = None

_TOKEN_BYTES = 8
_MOST_NAME_BYTES = 200
"""Of the file's own name in that of its temporary file: file systems allow 255 bytes in all."""
_OPEN_FILES = re.compile(r"/dev/(stdin|stdout|stderr|fd/\d+)|/proc/[^/]+/fd/\d+")
_SAVE_MSG = (
    "cannot write {path!r}: {reason}.\n"
    "  expected:     a file in an existing folder that may be written{room}\n"
    "  likely cause: {cause}\n"
    "  fix:          another path, or mend the folder; {old}"
)
_CAUSES = {
    errno.ENOENT: "its folder does not exist",
    errno.ENOTDIR: "a part of the path is a file and no folder",
    errno.EISDIR: "the path names a folder",
    errno.EACCES: "no permission to write there",
    errno.EPERM: "no permission to write there",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of disk space is used up",
    errno.EFBIG: "the file is larger than the process or the file system allows",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "symbolic links that lead in a circle",
}


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replace the content of a file in one step: a temporary file beside it, fsync, and a rename.

    A symbolic link stays, and its target is replaced. Permissions of the old file are kept, and its owner where that is
    allowed; a new file has those of the umask. Of two writers at once the later one wins, with its whole content.
    Temporary files that killed writers of the same file left behind are removed. A pipe or a device is written to
    directly.

    Args:
      content: bytes, or text that is encoded as UTF-8 with the line ends that it has.

    Raises:
      SaveError: the file cannot be written, and is as it was before.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if _is_stream(path):
            with open(path, "wb") as file:
                file.write(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except (OSError, TypeError, ValueError) as error:  # the latter two: no path, or one with a null character
        raise _save_error(path, len(data), error) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise now the SaveError that `write_whole` would raise later; the file stays as it is.

    Whether the disk has room is not known before the content is.
    """
    try:
        if not _is_stream(path):
            target = Path(os.path.realpath(path))
            _check_target(target)
            temporary, descriptor = _create_locked(target, 0o600)
            os.close(descriptor)
            temporary.unlink()
    except (OSError, TypeError, ValueError) as error:
        raise _save_error(path, None, error) from error


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise SaveError now for a folder that neither exists nor can be made later, or that may not be written."""
    try:
        folder = Path(os.path.realpath(path))
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except (OSError, TypeError, ValueError) as error:
        saved = SaveError(
            f"cannot keep files in the folder {path!r}: {getattr(error, 'strerror', None) or error}.\n"
            "  expected:     a folder that exists, or can be made, and may be written\n"
            f"  likely cause: {_CAUSES.get(getattr(error, 'errno', None) or 0, 'the path names no folder')}\n"
            "  fix:          another folder"
        )
        saved.errno = getattr(error, "errno", None)
        raise saved from error


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path names something to write to, such as a pipe, and no file to replace."""
    if _OPEN_FILES.fullmatch(os.path.abspath(path)):
        return True
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _check_target(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is write-protected", str(target))


def _replace(target: Path, data: bytes) -> None:
    _check_target(target)
    old = target.stat() if target.exists() else None
    _remove_abandoned(target)
    with _temporary(target, mode=0o666 if old is None else 0o600) as (temporary, descriptor):
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if old is not None:
            _keep_owner_and_mode(temporary, old)
        os.fsync(descriptor)
        os.replace(temporary, target)
    _sync_folder(target.parent)


@contextlib.contextmanager
def _temporary(target: Path, *, mode: int) -> Iterator[tuple[Path, int]]:
    """A new file beside the target, locked while it is written; removed unless it was renamed."""
    temporary, descriptor = _create_locked(target, mode)
    try:
        yield temporary, descriptor
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(descriptor)


def _create_locked(target: Path, mode: int) -> tuple[Path, int]:
    while True:
        temporary = target.with_name(f"{_prefix(target)}{secrets.token_hex(_TOKEN_BYTES)}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink:  # removed as abandoned before it was locked
                os.close(descriptor)
                continue
        return temporary, descriptor


def _prefix(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:_MOST_NAME_BYTES])}."


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of this target that no living writer holds the lock of."""
    if fcntl is None:
        return
    name = re.compile(re.escape(_prefix(target)) + rf"[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.tmp")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name):
                _remove_unless_locked(entry.path)


def _remove_unless_locked(path: str) -> None:
    assert fcntl is not None
    with contextlib.suppress(OSError):  # another process was quicker, or its writer lives and holds the lock
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(descriptor)


def _keep_owner_and_mode(path: Path, old: os.stat_result) -> None:
    if hasattr(os, "chown"):
        with contextlib.suppress(PermissionError):  # the file of another user: it becomes ours, as with most editors
            os.chown(path, old.st_uid, old.st_gid)
    os.chmod(path, stat.S_IMODE(old.st_mode))


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; some systems cannot open or synchronise folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _save_error(path: object, size: int | None, error: Exception) -> SaveError:
    number = getattr(error, "errno", None)
    cause = _CAUSES.get(number or 0, "the path or the disk")
    if number is None:
        cause = "the path is not a string, or has characters that no path can have"
    old = "the old file is as it was" if number is not None else "nothing was written"
    reason = getattr(error, "strerror", None) or str(error)
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    room = "" if size is None else f", with room for {size} bytes"
    saved = SaveError(_SAVE_MSG.format(path=text, reason=reason, room=room, cause=cause, old=old))
    saved.errno = number
    return saved
