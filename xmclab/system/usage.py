"""Memory of this process and of the machine, in bytes; None or a coarser number where the system does not tell."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

STATUS, ROOM = Path("/proc/self/status"), Path("/proc/meminfo")
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
UNLIMITED = 1 << 60  # what the first version of cgroups writes for it, or more


def free() -> int | None:
    """What this process can still take: of the machine, or of its cgroup if that is less."""
    room = _field(ROOM, "MemAvailable")
    limits = [room] if room is not None else []
    return min([*limits, *_cgroup_room()], default=None)


def resident() -> int:
    """What this process holds now."""
    return _field(STATUS, "VmRSS") or peak()


def peak() -> int:
    """The most that it has held since `forget_peak`, or ever where a peak cannot be forgotten."""
    found = _field(STATUS, "VmHWM")
    if found is not None:
        return found
    with contextlib.suppress(ImportError):  # Windows has no such module
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


def forget_peak() -> None:
    """Let `peak` start from what is held now, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _field(file: Path, name: str) -> int | None:
    """The value of a line `name: 123 kB`."""
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroup_room() -> list[int]:
    """What is left in the cgroups of this process that have a limit, in either version of cgroups."""
    rooms = []
    with contextlib.suppress(OSError):
        for line in OWN_GROUP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                top, names = GROUPS, ("memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                top, names = GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            folder = top / path.lstrip("/")
            for group in (folder, *folder.parents):
                if group == top.parent:
                    break
                rooms += _room_of(group, *names)
    return rooms


def _room_of(group: Path, limit_file: str, used_file: str) -> list[int]:
    with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: `max`
        limit, used = (int((group / name).read_text()) for name in (limit_file, used_file))
        # Files that the system merely keeps in memory count as used, but give way.
        cached = _cached(group)
        return [max(limit - used + cached, 0)] if limit < UNLIMITED else []
    return []


def _cached(group: Path) -> int:
    """Bytes of files in memory that can be dropped."""
    with contextlib.suppress(OSError):
        fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
    return 0
