"""Networks. The handle is the one of `open_zk`; `network` is a VNI or a description."""

from pvc_runner.channel import pair


def get_list(zkhandler, limit=None, is_fuzzy=True):
    """Returns a pair: True, and the networks as the HTTP API lists them."""
    return pair("network.get_list", limit=limit, is_fuzzy=is_fuzzy)


def get_info(zkhandler, network):
    """Returns a pair: whether there is the network, and the network or a message."""
    return pair("network.get_info", network=network)
