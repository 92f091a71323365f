"""Nodes. The handle is the one of `open_zk`."""

from pvc_runner.channel import pair


def get_list(zkhandler, limit=None):
    """Returns a pair: True, and the nodes as the HTTP API lists them."""
    return pair("node.get_list", limit=limit)


def get_info(zkhandler, node):
    """Returns a pair: whether there is the node, and the node or a message."""
    return pair("node.get_info", node=node)
