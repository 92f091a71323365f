"""Pools, volumes and snapshots.

Each function that does something returns a pair: whether it was done, and a message. The handle
is the one of `open_zk`.
"""

import math
import re
from fractions import Fraction

from pvc_runner.channel import pair

UNITS = "BKMGTPEZYRQ"


def add_volume(zkhandler, pool, name, size, force_flag=False, zk_only=False):
    """Makes a volume of a size such as `4G`. `force_flag` allows a pool beyond 80 %."""
    return pair(
        "ceph.add_volume",
        pool=pool,
        name=name,
        size=str(size),
        force_flag=bool(force_flag),
        zk_only=bool(zk_only),
    )


def clone_volume(zkhandler, pool, name_src, name_new, force_flag=False):
    """Copies a volume of the same pool."""
    return pair(
        "ceph.clone_volume",
        pool=pool,
        name_src=name_src,
        name_new=name_new,
        force_flag=bool(force_flag),
    )


def remove_volume(zkhandler, pool, name):
    """Removes a volume with its snapshots."""
    return pair("ceph.remove_volume", pool=pool, name=name)


def resize_volume(zkhandler, pool, name, size, force_flag=False):
    """Gives a volume another size."""
    return pair(
        "ceph.resize_volume",
        pool=pool,
        name=name,
        size=str(size),
        force_flag=bool(force_flag),
    )


def rename_volume(zkhandler, pool, name, new_name):
    """Gives a volume another name."""
    return pair("ceph.rename_volume", pool=pool, name=name, new_name=new_name)


def map_volume(zkhandler, pool, name):
    """Makes a volume a block device of this node; the message is the path of the device."""
    return pair("ceph.map_volume", pool=pool, name=name)


def unmap_volume(zkhandler, pool, name):
    """Takes the block device of a volume away."""
    return pair("ceph.unmap_volume", pool=pool, name=name)


def add_snapshot(zkhandler, pool, volume, name):
    """Makes a snapshot of a volume."""
    return pair("ceph.add_snapshot", pool=pool, volume=volume, name=name)


def remove_snapshot(zkhandler, pool, volume, name):
    """Removes a snapshot of a volume."""
    return pair("ceph.remove_snapshot", pool=pool, volume=volume, name=name)


def rollback_snapshot(zkhandler, pool, volume, name):
    """Gives a volume the contents that it had at a snapshot."""
    return pair("ceph.rollback_snapshot", pool=pool, volume=volume, name=name)


def get_list_volume(zkhandler, pool, limit=None, is_fuzzy=True):
    """Returns a pair: True, and the volumes of a pool, or of all with None."""
    return pair("ceph.get_list_volume", pool=pool, limit=limit, is_fuzzy=is_fuzzy)


def get_list_pool(zkhandler, limit=None, is_fuzzy=True):
    """Returns a pair: True, and the pools."""
    return pair("ceph.get_list_pool", limit=limit, is_fuzzy=is_fuzzy)


def get_list_snapshot(zkhandler, pool, volume, limit=None, is_fuzzy=True):
    """Returns a pair: True, and the snapshots of a volume."""
    return pair(
        "ceph.get_list_snapshot",
        pool=pool,
        volume=volume,
        limit=limit,
        is_fuzzy=is_fuzzy,
    )


def get_list_osd(zkhandler, limit=None, is_fuzzy=True):
    """Returns a pair: True, and the OSDs."""
    return pair("ceph.get_list_osd", limit=limit, is_fuzzy=is_fuzzy)


def format_bytes_fromhuman(size):
    """Returns the whole bytes of a size such as `4G`, `1.5MiB` or `1024`; units are binary."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]?)(?:iB|i|B|b)?", str(size).strip())
    unit = UNITS.find(found[2].upper()) if found else -1
    if unit < 0:
        raise ValueError(f"`{size}` is no size; one is `4G`")
    return int(Fraction(found[1]) * 1024**unit)


def format_bytes_tohuman(size):
    """Returns a size of at most four digits with the smallest unit, rounded up: `11G`, `9216M`."""
    unit = 0
    while size > 9999 * 1024**unit and unit < len(UNITS) - 1:
        unit += 1
    return f"{math.ceil(Fraction(size) / 1024**unit)}{UNITS[unit]}"

