"""VMs. The handle is the one of `open_zk`; `domain` is a name or a UUID."""

from pvc_runner.channel import pair


def get_list(
    zkhandler, node=None, state=None, tag=None, limit=None, is_fuzzy=True, negate=False
):
    """Returns a pair: True, and the VMs as the HTTP API lists them."""
    return pair(
        "vm.get_list",
        node=node,
        state=state,
        tag=tag,
        limit=limit,
        is_fuzzy=is_fuzzy,
        negate=negate,
    )


def get_info(zkhandler, domain):
    """Returns a pair: whether there is the VM, and the VM or a message."""
    return pair("vm.get_info", domain=domain)


def define_vm(
    zkhandler,
    config_data,
    target_node,
    node_limit,
    node_selector,
    node_autostart,
    migration_method=None,
    migration_max_downtime=300,
    profile=None,
    tags=None,
    initial_state="stop",
):
    """Defines another VM than the one that is being made, from its XML, in state `stop`."""
    return pair(
        "vm.define_vm",
        config_data=config_data,
        target_node=target_node,
        node_limit=node_limit,
        node_selector=node_selector,
        node_autostart=node_autostart,
        migration_method=migration_method,
        migration_max_downtime=migration_max_downtime,
        profile=profile,
        tags=tags or [],
        initial_state=initial_state,
    )


def start_vm(zkhandler, domain):
    """Starts another VM; nobody waits until it runs."""
    return pair("vm.start_vm", domain=domain)


def stop_vm(zkhandler, domain):
    """Ends another VM at once, without a wait until its guest is gone."""
    return pair("vm.stop_vm", domain=domain)


def shutdown_vm(zkhandler, domain):
    """Asks another VM to shut down; nobody waits until it has."""
    return pair("vm.shutdown_vm", domain=domain)


def undefine_vm(zkhandler, domain):
    """Removes another VM, which is off, and keeps its volumes."""
    return pair("vm.undefine_vm", domain=domain)


def remove_vm(zkhandler, domain):
    """Removes another VM, which is off, with its volumes."""
    return pair("vm.remove_vm", domain=domain)
